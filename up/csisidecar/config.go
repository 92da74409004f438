package csisidecar

import (
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/provision"
	csiprovision "github.com/berth-dev/berth/provision/csi"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/provision/snapshot/groupapi"
	"github.com/berth-dev/berth/timeline"
)

// Deps are what the controllers work with.
type Deps struct {
	// Client is required.
	Client kubernetes.Interface
	// Dynamic reads VolumeSnapshots, whose kind only some clusters have. Config.Provision requires it.
	Dynamic dynamic.Interface
	// Snapshots reads and writes VolumeSnapshotContents. Config.Snapshot requires it.
	Snapshots api.Client
	// GroupSnapshots reads and writes VolumeGroupSnapshotContents. Config.GroupSnapshot requires it.
	GroupSnapshots groupapi.Client
	// Timeline records what the controllers do; it may be nil.
	Timeline *timeline.Recorder
	// Recorder records the events of the controllers beside the provision controller, whose option is
	// provision.EventRecorder. By default they write to the API server.
	Recorder record.EventRecorder
	// Logger receives the controllers' logs; nil discards them.
	Logger *slog.Logger
	// Clock may be nil for the real one.
	Clock clock.WithTicker
	// Registerer registers the controllers' metrics; nil registers none. Those of the provision controller get the label
	// provisioner, because a process may provision for several drivers. Each Sidecar needs a Registerer of its own.
	Registerer prometheus.Registerer
}

// Config selects the controllers of one driver. It has many fields because each controller has a switch and most have an option.
type Config struct {
	// Driver has the driver's name and socket, both required, and the options of its calls.
	Driver csiprovision.Config
	// Provision provisions and deletes the driver's volumes.
	Provision bool
	// Capacity publishes CSIStorageCapacity objects, Resize expands volumes and applies VolumeAttributesClasses to them. Both
	// require Provision.
	Capacity, Resize bool
	// Snapshot takes and deletes the driver's snapshots. It requires Provision.
	Snapshot bool
	// GroupSnapshot takes and deletes the driver's group snapshots. It requires Snapshot.
	GroupSnapshot bool
	// Health reports abnormal volumes on their claims. It requires Provision, and excludes NodeDeployment.
	Health bool
	// Attach processes the driver's VolumeAttachments.
	Attach bool
	// CapacityPeriod is how often the driver's capacity is read again; zero means the default of package capacity.
	CapacityPeriod time.Duration
	// NodeDeployment provisions for one node, on each of which such a driver runs: Driver.NodeName is required, and there is no
	// leader election. Volumes and snapshots of other nodes are not this driver's, so Resize, Snapshot and Attach exclude it.
	NodeDeployment bool
	// SelectNode, with NodeDeployment, selects the node for claims that bind at once, by package nodeselect, with these delays.
	SelectNode                              bool
	SelectNodeBaseDelay, SelectNodeMaxDelay time.Duration
	// PodNamespace and PodName are those of the Pod that this process runs in. Its controller then owns the
	// CSIStorageCapacity objects. Both are empty outside of a Pod: then the objects are in kube-system, without an owner.
	PodNamespace, PodName string
	// LeaderElection runs the controllers only while this process holds the driver's Lease, which is in
	// LeaderElectionNamespace, or, if that is empty, in the process's own namespace. It requires Provision.
	LeaderElection          bool
	LeaderElectionNamespace string
	// ProvisionOptions are further options of the provision controller.
	ProvisionOptions []provision.Option
}

func (d *Deps) complete(config Config) error {
	switch {
	case d.Client == nil:
		return errors.New("Deps.Client is required")
	case config.Provision && d.Dynamic == nil:
		return errors.New("Deps.Dynamic is required")
	case config.Snapshot && d.Snapshots == nil:
		return errors.New("Deps.Snapshots is required")
	case config.GroupSnapshot && d.GroupSnapshots == nil:
		return errors.New("Deps.GroupSnapshots is required")
	}
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	if d.Clock == nil {
		d.Clock = clock.RealClock{}
	}
	return nil
}

func (c Config) validate() error {
	switch {
	case c.Driver.Name == "" || c.Driver.Socket == "":
		return errors.New("Config.Driver: Name and Socket are required")
	case !c.Provision && !c.Attach:
		return errors.New("Config.Provision or Config.Attach is required")
	case !c.Provision && (c.Capacity || c.Resize || c.Snapshot || c.Health || c.LeaderElection):
		return errors.New("Config.Capacity, Config.Resize, Config.Snapshot, Config.Health and Config.LeaderElection require Config.Provision")
	case c.NodeDeployment && c.Driver.NodeName == "":
		return errors.New("Config.NodeDeployment requires Config.Driver.NodeName")
	case c.NodeDeployment && (c.LeaderElection || c.Resize || c.Snapshot || c.Health || c.Attach):
		return errors.New("Config.NodeDeployment excludes Config.LeaderElection, Config.Resize, Config.Snapshot, Config.Health and Config.Attach")
	case c.SelectNode && !c.NodeDeployment:
		return errors.New("Config.SelectNode requires Config.NodeDeployment")
	case c.GroupSnapshot && !c.Snapshot:
		return errors.New("Config.GroupSnapshot requires Config.Snapshot")
	}
	return nil
}
