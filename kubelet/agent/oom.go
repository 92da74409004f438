package agent

import (
	"context"

	"github.com/berth-dev/berth/kubelet/cadvisor"
	"github.com/berth-dev/berth/kubelet/node"
)

// setOOMScore sets the oom_score_adj of this process. One that may not lower it runs all the same.
func (b *base) setOOMScore() {
	if b.config.OOMScoreAdj == nil {
		return
	}
	if err := b.deps.OOMAdjuster.ApplyOOMScoreAdj(0, *b.config.OOMScoreAdj); err != nil {
		b.deps.Logger.Warn("failed to set the kubelet's oom_score_adj", "error", err)
	}
}

// watchOOM records an event when the machine is out of memory and the kernel kills a process. A node whose kernel does not
// report them works without.
func (b *base) watchOOM(ctx context.Context) error {
	err := cadvisor.RecordOOMKills(ctx, b.deps.Machine, b.deps.Recorder, node.Reference(b.config.Node.Name))
	if err != nil && ctx.Err() == nil {
		b.deps.Logger.Warn("failed to watch the kernel's OOM kills; they will not be reported", "error", err)
	}
	return nil
}
