package replicaset

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/timeline"
)

// Deps are the dependencies of the controller. Only Client is required.
type Deps struct {
	// Client reads and writes the API. It needs the rights of the cluster role
	// system:controller:replicaset-controller.
	Client kubernetes.Interface
	// Informers provides the Pod and ReplicaSet informers, to share them with others. New gets them from it; the caller
	// starts it after that. By default the controller creates and runs informers of its own.
	Informers informers.SharedInformerFactory
	// Recorder records Kubernetes events. By default the controller sends events itself, under its own name.
	Recorder record.EventRecorder
	// Timeline records the stages of ReplicaSets, and the creation of Pods. It may be nil.
	Timeline *timeline.Recorder
	// Logger logs failures at error level. The default discards.
	Logger *slog.Logger
	// Clock is the source of time. The default is the real clock.
	Clock clock.WithTicker
	// Registerer registers the metrics while the controller runs. By default there are none.
	Registerer prometheus.Registerer
}

// Config is the configuration of the controller.
type Config struct {
	// Workers is how many ReplicaSets are reconciled at the same time. The default is 5.
	Workers int
	// Burst is how many Pods one reconciliation may create or delete for one ReplicaSet. The default is 500.
	Burst int
	// Parallel is how many requests one reconciliation sends at the same time. The default is 32.
	Parallel int
	// Recheck is the delay before a ReplicaSet whose created Pods the cache does not show yet is reconciled again, in case
	// the event was lost. The default is 15 s.
	Recheck time.Duration
	// BackoffMin and BackoffMax bound the delay after a failure; see controller.Config, whose defaults they have.
	BackoffMin, BackoffMax time.Duration
}

func (c Config) complete() (Config, error) {
	for _, field := range []struct {
		name  string
		value *int
		or    int
	}{{"Workers", &c.Workers, 5}, {"Burst", &c.Burst, 500}, {"Parallel", &c.Parallel, 32}} {
		if *field.value < 0 {
			return c, fmt.Errorf("replicaset: Config.%s is negative: %d", field.name, *field.value)
		}
		if *field.value == 0 {
			*field.value = field.or
		}
	}
	if c.Recheck < 0 {
		return c, fmt.Errorf("replicaset: Config.Recheck is negative: %s", c.Recheck)
	}
	if c.Recheck == 0 {
		c.Recheck = 15 * time.Second
	}
	return c, nil
}

func (d Deps) complete() (Deps, error) {
	if d.Client == nil {
		return d, errors.New("replicaset: Deps.Client is required")
	}
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	if d.Clock == nil {
		d.Clock = clock.RealClock{}
	}
	return d, nil
}
