package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/eventsink"
	"github.com/berth-dev/berth/internal/startonce"
)

// Deps are what a Lifecycle works with. Runner is required, and Client unless there is a Recorder; the others may be nil.
type Deps struct {
	// Client writes events.
	Client kubernetes.Interface
	// Recorder records events. The default is a recorder that writes to the API server while the controller runs.
	Recorder record.EventRecorder
	Logger   *slog.Logger
	Clock    clock.WithTicker
	// Registerer registers Config.Collector while the controller runs.
	Registerer prometheus.Registerer
	// Runner has the workers.
	Runner *controller.Controller
}

// Config is how a Lifecycle works. Name and EventSource are required.
type Config struct {
	// Name names the controller in errors.
	Name string
	// EventSource is the source of the events.
	EventSource string
	// Served waits until the cluster serves the objects, or returns an error. Nil: every cluster does.
	Served func(ctx context.Context) error
	// Informers run beside the workers.
	Informers []cache.SharedIndexInformer
	// Begin, if set, is called before the workers start, with a context that ends with them, and end after that context has
	// ended.
	Begin func(ctx context.Context) (end func())
	// Collector is registered while the controller runs. It may be nil.
	Collector prometheus.Collector
}

// Lifecycle is the life of one controller. Start runs it, once.
type Lifecycle struct {
	deps   Deps
	config Config
	served atomic.Bool
	once   startonce.Guard
}

// New returns a Lifecycle. It starts nothing.
func New(deps Deps, config Config) (*Lifecycle, error) {
	switch {
	case deps.Runner == nil:
		return nil, errors.New("lifecycle: Deps.Runner is required")
	case deps.Client == nil && deps.Recorder == nil:
		return nil, errors.New("lifecycle: Deps.Client or Deps.Recorder is required")
	case config.Name == "" || config.EventSource == "":
		return nil, errors.New("lifecycle: Config.Name and Config.EventSource are required")
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	l := &Lifecycle{deps: deps, config: config}
	l.served.Store(config.Served == nil)
	return l, nil
}

// Start runs the controller until ctx ends, and returns when no worker runs any more.
func (l *Lifecycle) Start(ctx context.Context) error {
	if err := l.once.Begin(l.config.Name); err != nil {
		return err
	}
	if l.config.Served != nil {
		if err := l.config.Served(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("start %s: %w", l.config.Name, err)
		}
		l.served.Store(true)
	}
	if l.deps.Recorder == nil {
		recorder, stop, err := eventsink.StartRecorder(ctx, eventsink.Deps{
			Client: l.deps.Client.CoreV1(), Clock: l.deps.Clock, Logger: l.deps.Logger,
		}, eventsink.Config{}, corev1.EventSource{Component: l.config.EventSource})
		if err != nil {
			return fmt.Errorf("start %s: %w", l.config.Name, err)
		}
		defer stop()
		l.deps.Recorder = recorder
	}
	if l.deps.Registerer != nil && l.config.Collector != nil {
		if err := l.deps.Registerer.Register(l.config.Collector); err != nil {
			return fmt.Errorf("start %s: register metrics: %w", l.config.Name, err)
		}
		defer l.deps.Registerer.Unregister(l.config.Collector)
	}
	return l.run(ctx)
}

func (l *Lifecycle) run(ctx context.Context) error {
	watching, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	end := func() {}
	if l.config.Begin != nil {
		end = l.config.Begin(watching)
	}
	defer func() {
		cancel()
		end()
	}()
	for _, informer := range l.config.Informers {
		running.Go(contain.Guard("lifecycle.informer", l.config.Name, func() { informer.RunWithContext(watching) }))
	}
	return l.deps.Runner.Start(ctx)
}

// Recorder returns the recorder of events, nil before Start if there is none in Deps. Workers may call it.
func (l *Lifecycle) Recorder() record.EventRecorder { return l.deps.Recorder }

// RetryNow retries all that wait for the delay after a failure at once, because the cause may be gone.
func (l *Lifecycle) RetryNow() { l.deps.Runner.RetryFailed() }

// Ready returns nil once the caches are filled and the workers run, and as long as the cluster does not serve the objects.
func (l *Lifecycle) Ready() error {
	if !l.served.Load() {
		return nil
	}
	return l.deps.Runner.Ready()
}

// Healthy returns an error while a worker is stuck.
func (l *Lifecycle) Healthy() error { return l.deps.Runner.Healthy() }
