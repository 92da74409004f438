package modify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/client"
	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/eventsink"
	"github.com/berth-dev/berth/provision/claimretry"
	"github.com/berth-dev/berth/provision/resize"
	"github.com/berth-dev/berth/reconcile"
	"github.com/berth-dev/berth/timeline"
)

const (
	// DefaultWorkers is how many volumes are modified at once.
	DefaultWorkers = 10

	// timelineOwner is the owner of the stages in timelines.
	timelineOwner = "modifier"
	// claimKind is the kind of a claim in timelines.
	claimKind = "PersistentVolumeClaim"

	// apiRetryMin and apiRetryMax bound the backoff of failed API writes.
	apiRetryMin, apiRetryMax = 100 * time.Millisecond, time.Minute
)

// Driver modifies volumes. Its errors carry the gRPC status of the driver's response; an error without a status means that
// nothing was sent. It is safe for concurrent use.
type Driver interface {
	// SupportsModify reports whether the driver modifies volumes.
	SupportsModify(ctx context.Context) (bool, error)
	// ModifyVolume applies the parameters of a VolumeAttributesClass to the claim's volume. It may be repeated.
	ModifyVolume(ctx context.Context, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume, parameters map[string]string) error
}

// Deps are what a Modifier works with. Client and Driver are required; the others have the usual defaults.
type Deps struct {
	// Client watches claims and patches their status, gets and patches PersistentVolumes, gets VolumeAttributesClasses, and watches
	// them once a claim waits for one, and writes events.
	Client kubernetes.Interface
	Driver Driver
	// Informers watches claims. Those of resize.NewInformers are the default; controllers of one driver share them.
	Informers informers.SharedInformerFactory
	// Timeline records each try as a stage of the claim. It may be nil.
	Timeline *timeline.Recorder
	// Recorder records events. The default is a recorder that writes to the API server.
	Recorder record.EventRecorder
	Logger   *slog.Logger
	Clock    clock.WithTicker
	// Registerer registers the metrics while the modifier runs. Nil: there are none.
	Registerer prometheus.Registerer
}

// Config is how a Modifier works. DriverName is required.
type Config struct {
	// DriverName is the name of the driver whose volumes are modified.
	DriverName string
	// Workers is how many volumes are modified at once. Default DefaultWorkers.
	Workers int
}

type claims = client.Resource[*corev1.PersistentVolumeClaim, *corev1.PersistentVolumeClaimList,
	typedcorev1.PersistentVolumeClaimInterface]

// Modifier modifies the volumes of one driver. Start runs it, once.
type Modifier struct {
	deps     Deps
	config   Config
	claims   *claims
	runner   *controller.Controller
	recorder record.EventRecorder // set by Start before the first run
	metrics  *prometheus.HistogramVec
	retries  *claimretry.Delays

	// classWanted is closed when the first claim waits for a class.
	classWanted chan struct{}
	classOnce   sync.Once
	mu          sync.Mutex // guards waiting
	// waiting has the claims that wait for a class to be created.
	waiting map[reconcile.Request]string
}

// New returns a Modifier. It starts nothing.
func New(deps Deps, config Config) (*Modifier, error) {
	switch {
	case deps.Client == nil:
		return nil, errors.New("modify: Deps.Client is required")
	case deps.Driver == nil:
		return nil, errors.New("modify: Deps.Driver is required")
	case config.DriverName == "":
		return nil, errors.New("modify: Config.DriverName is required")
	}
	if config.Workers <= 0 {
		config.Workers = DefaultWorkers
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	deps.Logger = deps.Logger.With("driver", config.DriverName)
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Informers == nil {
		deps.Informers = resize.NewInformers(deps.Client)
	}
	m := &Modifier{
		deps: deps, config: config, recorder: deps.Recorder, metrics: newMetrics(config.DriverName),
		retries: claimretry.New(deps.Clock), classWanted: make(chan struct{}), waiting: map[reconcile.Request]string{},
	}
	return m, m.build()
}

func newMetrics(driver string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Subsystem: "controller", Name: "persistentvolumeclaim_modify_duration_seconds",
		Help:        "Duration of ControllerModifyVolume calls, by outcome.",
		ConstLabels: prometheus.Labels{"driver": driver}, Buckets: prometheus.DefBuckets,
	}, []string{"outcome"})
}

func (m *Modifier) build() error {
	informer := m.deps.Informers.Core().V1().PersistentVolumeClaims().Informer()
	var err error
	m.claims, err = client.New(m.deps.Client.CoreV1().PersistentVolumeClaims, informer,
		client.Config[*corev1.PersistentVolumeClaim]{Resource: corev1.Resource("persistentvolumeclaims")})
	if err != nil {
		return fmt.Errorf("modify: %w", err)
	}
	m.runner, err = controller.New(reconcile.Func(m.reconcile), controller.Deps{
		Logger: m.deps.Logger, Clock: m.deps.Clock, Registerer: m.deps.Registerer,
	}, controller.Config{
		Name: "modifier of " + m.config.DriverName, Workers: m.config.Workers,
		BackoffMin: apiRetryMin, BackoffMax: apiRetryMax,
	})
	if err != nil {
		return fmt.Errorf("modify: %w", err)
	}
	m.runner.Watch(controller.For(informer, controller.Changed(), func(e controller.Event) bool {
		claim, ok := e.Object.(*corev1.PersistentVolumeClaim)
		return ok && needsWork(claim)
	}))
	return nil
}

// Start modifies volumes until ctx ends, and returns when no call of the driver runs any more. The next process continues
// what is unfinished then.
func (m *Modifier) Start(ctx context.Context) error {
	if m.recorder == nil {
		recorder, stop, err := eventsink.StartRecorder(ctx, eventsink.Deps{
			Client: m.deps.Client.CoreV1(), Clock: m.deps.Clock, Logger: m.deps.Logger,
		}, eventsink.Config{}, corev1.EventSource{Component: timelineOwner + " " + m.config.DriverName})
		if err != nil {
			return fmt.Errorf("start modifier of driver %q: %w", m.config.DriverName, err)
		}
		defer stop()
		m.recorder = recorder
	}
	if m.deps.Registerer != nil {
		if err := m.deps.Registerer.Register(m.metrics); err != nil {
			return fmt.Errorf("start modifier of driver %q: register metrics: %w", m.config.DriverName, err)
		}
		defer m.deps.Registerer.Unregister(m.metrics)
	}
	watching, stop := context.WithCancel(ctx)
	var waker sync.WaitGroup
	defer waker.Wait()
	defer m.deps.Informers.Shutdown()
	defer stop()
	waker.Go(contain.Loop(watching, "modify.watchClasses", "", m.watchClasses))
	m.deps.Informers.StartWithContext(watching)
	return m.runner.Start(ctx)
}

// Ready returns nil once the cache is filled and the workers run.
func (m *Modifier) Ready() error { return m.runner.Ready() }

// Healthy returns an error while a worker is stuck.
func (m *Modifier) Healthy() error { return m.runner.Healthy() }

// RetryNow retries all modifications that wait for their delay at once, because the driver is back.
func (m *Modifier) RetryNow() {
	m.runner.Enqueue(m.retries.ForgetAll()...)
	m.runner.RetryFailed()
}
