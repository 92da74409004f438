package agent

import (
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/housekeeping"
	"github.com/berth-dev/berth/kubelet/mirror"
	"github.com/berth-dev/berth/kubelet/node"
	"github.com/berth-dev/berth/kubelet/nodeaddress"
	"github.com/berth-dev/berth/kubelet/objects"
	"github.com/berth-dev/berth/kubelet/podworker"
	"github.com/berth-dev/berth/kubelet/runtimehelper"
	"github.com/berth-dev/berth/kubelet/server"
	"github.com/berth-dev/berth/kubelet/status"
	"github.com/berth-dev/berth/kubelet/volumemanager"
)

// Config returns the values that the Agent works with, defaults included.
func (a *Agent) Config() Config { return a.base.config }

// Configuration returns what is in force, as /configz shows it. The caller owns it.
func (a *Agent) Configuration() *kubeletconfig.KubeletConfiguration {
	return configuration(&a.base.config, a.node.cgroups.Driver())
}

// Deps returns the dependencies that the Agent works with, defaults included.
func (a *Agent) Deps() Deps { return a.base.deps }

// Components are the parts of an Agent that package kubelet exposes.
type Components struct {
	Runtime       container.Runtime
	Node          *node.Manager
	Addresses     *nodeaddress.Store
	Cgroups       *cm.Manager
	Objects       *objects.Manager
	Volumes       *volumemanager.Manager
	RuntimeHelper *runtimehelper.Helper
	Workers       *podworker.Manager
	Signals       *podworker.Signals
	Mirrors       *mirror.Manager
	PodEvents     *status.Broadcaster
	Housekeeping  *housekeeping.Manager
	Host          *server.PodHost
}

// Components returns the Agent's parts.
func (a *Agent) Components() Components {
	return Components{
		Runtime: a.runtime.client, Node: a.node.manager, Addresses: a.node.addresses, Cgroups: a.node.cgroups,
		Objects: a.storage.objects, Volumes: a.storage.volumes, RuntimeHelper: a.pods.helper, Workers: a.pods.workers,
		Signals: a.base.signals, Mirrors: a.pods.mirrors, PodEvents: a.base.podEvents, Housekeeping: a.housekeeping,
		Host: a.server.host,
	}
}

// NodeConfig returns the layout of the node's cgroups.
func (a *Agent) NodeConfig() cm.NodeConfig { return a.server.nodeConfig() }

// ServerDeps returns what another server of the node's API needs, with this authentication and authorization.
func (a *Agent) ServerDeps(auth server.Auth) server.Deps { return a.server.deps(a.base, a.node, auth) }
