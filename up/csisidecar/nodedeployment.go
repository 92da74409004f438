package csisidecar

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/berth-dev/berth/provision/nodeselect"
)

// nodeIntent returns the finalizer of the intents of one node's provisioner.
func nodeIntent(node string) string {
	sum := sha256.Sum256([]byte(node))
	return "intent.provision.berth.dev/node-" + hex.EncodeToString(sum[:10])
}

// nodeManager returns the label value of the capacity objects of one node's publisher.
func nodeManager(node string) string {
	sum := sha256.Sum256([]byte(node))
	return "berth-" + hex.EncodeToString(sum[:10])
}

// newSelector returns the Selector of this node for claims that bind at once.
func (s *Sidecar) newSelector() (*nodeselect.Selector, error) {
	return nodeselect.New(nodeselect.Deps{
		Client: s.deps.Client, Driver: s.provisioner, Logger: s.deps.Logger, Clock: s.deps.Clock,
	}, nodeselect.Config{
		DriverName: s.config.Driver.Name, NodeName: s.config.Driver.NodeName,
		BaseDelay: s.config.SelectNodeBaseDelay, MaxDelay: s.config.SelectNodeMaxDelay,
	})
}
