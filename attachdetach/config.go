package attachdetach

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

// Name is the controller's name in events and logs.
const Name = "attachdetach-controller"

// Deps are the dependencies of the controller. Only Client is required.
type Deps struct {
	// Client reads and writes the API. It needs to read Pods, claims, PersistentVolumes, nodes, CSIDrivers and
	// VolumeAttachments, to create and delete VolumeAttachments, and to patch nodes/status and write events.
	Client kubernetes.Interface
	// Plugins are tried before the CSI plugin, which is always used. Usually none.
	Plugins []operationexecutor.AttachablePlugin
	// OnClaimChanged, if set, is called for each claim that changes, or whose PersistentVolume changes, and for all that exist
	// at the start, so that a kubelet in the same process needs no watch of claims. It must return soon.
	OnClaimChanged func(namespace, name string)
	// Timeline records attaches and what Pods wait for. It may be nil.
	Timeline *timeline.Recorder
	// Recorder records events. By default the controller sends events itself, under its own name.
	Recorder record.EventRecorder
	// Logger defaults to one that discards.
	Logger *slog.Logger
	// Clock is the source of time. The default is the real clock.
	Clock clock.Clock
	// Registerer registers the metrics while the controller runs. By default there are none.
	Registerer prometheus.Registerer
}

// Config is the configuration of the controller. Zero fields mean the defaults.
type Config struct {
	// SafetyPeriod is the time between passes over everything, in case an event was lost. Default 1 min.
	SafetyPeriod time.Duration
	// ResyncPeriod is the time between new readings of all Pods and VolumeAttachments. Default 3 min.
	ResyncPeriod time.Duration
	// MaxWaitForUnmount is how long a volume may stay mounted on a node that is not ready before it is detached anyway.
	// Default 6 min. A Node's annotation reconciler.AnnMaxWaitForUnmount overrides it.
	MaxWaitForUnmount time.Duration
	// DisableForceDetachOnTimeout turns that off; the out-of-service taint still forces.
	DisableForceDetachOnTimeout bool
	// VerifyPeriod is the time between verifications of what is attached. Default 1 min; negative means never.
	VerifyPeriod time.Duration
	// NodeGoneGrace is how long after a Node's deletion its volumes count as unmounted. Default 40 s.
	NodeGoneGrace time.Duration
	// AttachTimeout is how long an attach or detach may take. Default 2 min.
	AttachTimeout time.Duration
	// Parallel is how many attaches, and how many detaches, run at once. Default operationexecutor.DefaultConcurrency.
	Parallel int
	// StatusWriters is how many node statuses are written at once. Default 16.
	StatusWriters int
	// NodeSelector is the nodes to work for, so that the controller can run beside another one. Nil means all nodes.
	// With a selector, VolumeAttachments of nodes that do not exist are ignored, because another controller may own them,
	// unless a controller with this selector has created them, which csi.AnnOwner records.
	NodeSelector labels.Selector
}

// owner returns the controller's name on the VolumeAttachments that it creates, empty if it is the only controller.
func (c Config) owner() string {
	if c.NodeSelector == nil {
		return ""
	}
	return c.NodeSelector.String()
}

func (d Deps) complete() (Deps, error) {
	if d.Client == nil {
		return d, errors.New("attachdetach: Deps.Client is required")
	}
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	if d.Clock == nil {
		d.Clock = clock.RealClock{}
	}
	return d, nil
}

func (c Config) complete() (Config, error) {
	for _, field := range []struct {
		name  string
		value *time.Duration
		or    time.Duration
	}{
		{"SafetyPeriod", &c.SafetyPeriod, time.Minute},
		{"ResyncPeriod", &c.ResyncPeriod, 3 * time.Minute},
		{"MaxWaitForUnmount", &c.MaxWaitForUnmount, 6 * time.Minute},
		{"NodeGoneGrace", &c.NodeGoneGrace, 40 * time.Second},
		{"AttachTimeout", &c.AttachTimeout, 2 * time.Minute},
	} {
		if *field.value < 0 {
			return c, fmt.Errorf("attachdetach: Config.%s is negative: %s", field.name, *field.value)
		}
		if *field.value == 0 {
			*field.value = field.or
		}
	}
	if c.Parallel < 0 || c.StatusWriters < 0 {
		return c, errors.New("attachdetach: Config.Parallel and Config.StatusWriters must not be negative")
	}
	if c.VerifyPeriod == 0 {
		c.VerifyPeriod = time.Minute
	}
	return c, nil
}
