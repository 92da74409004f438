package agent

import (
	"context"

	"github.com/berth-dev/berth/internal/iptables"
	"github.com/berth-dev/berth/kubelet/packetfilter"
)

// keepPacketFilter keeps the kubelet's chains in the packet filter, if the configuration says so.
func (b *base) keepPacketFilter(ctx context.Context) error {
	if !b.config.Network.MakeIPTablesUtilChains {
		return nil
	}
	return packetfilter.New(iptables.Deps{Clock: b.deps.Clock, Logger: b.logger("packet filter")}).Start(ctx)
}
