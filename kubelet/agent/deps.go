package agent

import (
	"context"
	"log/slog"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/boottime"
	"github.com/berth-dev/berth/kubelet/cadvisor"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/lifecycle"
	"github.com/berth-dev/berth/kubelet/node"
	"github.com/berth-dev/berth/kubelet/pleg"
	"github.com/berth-dev/berth/kubelet/util/oom"
	"github.com/berth-dev/berth/kubelet/volumemanager"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/mounts"
)

// Deps holds what an Agent needs. All may be nil. Its fields are more than a few because an Agent is the composition root:
// each is one thing that only its caller can provide.
type Deps struct {
	// Client has the node's identity at the API server. LeaseClient should have a connection of its own; it is Client if
	// nil. Without a Client the agent is standalone: there is no Node object, and only static Pods run.
	Client, LeaseClient kubernetes.Interface
	// Claims sends changes of PersistentVolumeClaims, where the controllers run in the same process: the node's identity may
	// not watch them. Without it, claims that are waited for are read each second, and expansions are looked for each minute.
	Claims volumemanager.ClaimSource
	// Runtime replaces the connection to Config.Runtime.Endpoint.
	Runtime  container.Runtime
	Timeline *timeline.Recorder
	// TracerProvider makes the agent's spans, unless Config.Tracing says where they go. Its owner shuts it down.
	TracerProvider trace.TracerProvider
	// Recorder takes events. If it is nil they are written with EventClient, or else with Client.
	Recorder    record.EventRecorder
	EventClient typedcorev1.EventsGetter
	Logger      *slog.Logger
	Clock       clock.WithTicker
	// Collectors are served at /metrics beside the agent's own. Their names must not clash.
	Collectors []prometheus.Collector
	// Gatherers are served at /metrics, too. They may have metrics of the same names, with the same help and other labels.
	Gatherers []prometheus.Gatherer
	// Processes serve the metrics of other processes of the node, by their names, at /metrics/processes/NAME.
	Processes map[string]http.Handler
	// Flags are the command line's flags by name, served at /flagz; nil serves none.
	Flags map[string]string
	// FindIPs, if set, returns the node's current addresses, the primary one first. It is called each time that an address or
	// a route of the machine has changed; until it returns others they are Config.Node.IPs, and an error keeps them as they
	// are. The server's addresses with the primary one change with it. Nil means that addresses never change.
	FindIPs func(ctx context.Context) ([]net.IP, error)
	// OnNodeIPsChanged, if set, is called with changed addresses, before the Node is updated. It must return soon.
	OnNodeIPsChanged func(ips []net.IP)
	// OnNode, if set, is called with each new state of the Node from the API server. It must return soon and must not modify the Node.
	OnNode func(node *corev1.Node)
	// OnIdle, if set, is called each time that no Pod has changed for some seconds, for example to release memory.
	OnIdle func() error
	// Exits, if set, has the exit codes of containers that ended while the runtime was down.
	Exits pleg.ExitRecorder
	// AdmitHandlers are called for each new Pod that the agent itself would take.
	AdmitHandlers []lifecycle.PodAdmitHandler
	// Machine reads the machine's hardware and OOM kills, the Node's capacity and the usage of the node, its file system
	// and its daemons; nil reads the kernel's files.
	Machine cadvisor.Interface
	// ContainerManager overrides the layout of cgroups that NodeConfig returns.
	ContainerManager cm.ContainerManager
	// OOMAdjuster sets Config.OOMScoreAdj; nil writes the kernel's file.
	OOMAdjuster *oom.OOMAdjuster
	// VolumePlugins set up volumes of Pods beside the agent's own plugins. A volume that one of them supports is theirs, and
	// one with the name of an own plugin takes its place.
	VolumePlugins []volume.Plugin
	// Mounter mounts and unmounts the volumes of Pods; nil uses system calls, and so does any Mounter's mount of a part of
	// a volume, which is known by an open file.
	Mounter mounts.Mounter
	// OS makes the kubelet's own directories and the links to container logs; nil is this machine.
	OS container.OSInterface
	// Instance, if set, returns what a cloud provider knows of the machine. The Node is registered with it, and its
	// addresses are the Node's from then on.
	Instance func(ctx context.Context, known *corev1.Node) (node.Instance, error)

	// standalone says that Client is one of which every call fails.
	standalone bool
	// sleepless is the Clock or, if that is the machine's, one that goes on while the machine sleeps.
	sleepless clock.Clock
	// machineGiven says that Machine is the caller's.
	machineGiven bool
}

func (d *Deps) complete() error {
	if d.Client == nil {
		client, err := newOfflineClient()
		if err != nil {
			return err
		}
		d.Client, d.LeaseClient, d.standalone = client, client, true
	}
	if d.LeaseClient == nil {
		d.LeaseClient = d.Client
	}
	if d.EventClient == nil && !d.standalone {
		d.EventClient = d.Client.CoreV1()
	}
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	if d.Clock == nil {
		d.Clock = clock.RealClock{}
	}
	d.sleepless = d.Clock
	if _, machine := d.Clock.(clock.RealClock); machine {
		d.sleepless = boottime.New()
	}
	if d.machineGiven = d.Machine != nil; !d.machineGiven {
		d.Machine = cadvisor.NewLocal(d.Clock)
	}
	if d.Mounter == nil {
		d.Mounter = mounts.Syscalls{}
	} else {
		d.Mounter = mounts.ByPath(d.Mounter)
	}
	if d.OS == nil {
		d.OS = container.RealOS{}
	}
	if d.OOMAdjuster == nil {
		d.OOMAdjuster = oom.NewOOMAdjuster()
	}
	return nil
}
