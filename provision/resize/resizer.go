package resize

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/client"
	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/internal/eventsink"
	"github.com/berth-dev/berth/reconcile"
	"github.com/berth-dev/berth/timeline"
)

const (
	// DefaultWorkers is how many volumes grow at once.
	DefaultWorkers = 10

	// timelineOwner names this part in timelines.
	timelineOwner = "resizer"
	// claimKind is how timelines call a claim.
	claimKind = "PersistentVolumeClaim"

	// apiRetryMin and apiRetryMax are the pauses after a write that the API server did not take.
	apiRetryMin, apiRetryMax = 100 * time.Millisecond, time.Minute
)

// Capabilities are what a driver says that it can do.
type Capabilities struct {
	// Controller is set if the driver is to be asked for the larger size.
	Controller bool
	// Node is set if it is not, and makes volumes larger on their nodes all by itself.
	Node bool
}

// ExpandResult is a driver's answer.
type ExpandResult struct {
	// Capacity is the size of the volume now, in bytes.
	Capacity int64
	// NodeExpansionRequired is set if the node has to do its part: mostly because there is a filesystem.
	NodeExpansionRequired bool
}

// Driver makes volumes larger. Its errors carry the gRPC status of the driver's answer; one without a status says that
// nothing was sent. It is safe for concurrent use.
type Driver interface {
	// Capabilities asks what the driver can do.
	Capabilities(ctx context.Context) (Capabilities, error)
	// ExpandVolume has the volume be at least of that size, in bytes. It may be repeated.
	ExpandVolume(ctx context.Context, pv *corev1.PersistentVolume, size int64) (ExpandResult, error)
	// WakeDeletions calls wake each time that a VolumeAttachment of a volume of the driver is gone, until ctx ends.
	NotifyDeletable(ctx context.Context, wake func(volume string)) error
}

// Deps are what a Resizer works with. Client and Driver are required; the others have the usual defaults.
type Deps struct {
	// Client needs to watch claims, to patch them and their status, to get and patch PersistentVolumes, and to write events.
	Client kubernetes.Interface
	Driver Driver
	// Timeline gets each call of the driver as a stage of its claim. It may be nil.
	Timeline *timeline.Recorder
	// Recorder takes events. By default the resizer sends events itself.
	Recorder record.EventRecorder
	Logger   *slog.Logger
	Clock    clock.WithTicker
	// Registerer takes the metrics while the resizer runs. The default keeps none.
	Registerer prometheus.Registerer
}

// Config is how a Resizer works. DriverName is required.
type Config struct {
	// DriverName is the name of the driver whose volumes are made larger.
	DriverName string
	// Workers is how many volumes grow at once. Default DefaultWorkers.
	Workers int
}

type claims = client.Resource[*corev1.PersistentVolumeClaim, *corev1.PersistentVolumeClaimList,
	typedcorev1.PersistentVolumeClaimInterface]

// Resizer makes the volumes of one driver larger. Start runs it, once.
type Resizer struct {
	deps     Deps
	config   Config
	factory  informers.SharedInformerFactory
	claims   *claims
	runner   *controller.Controller
	recorder record.EventRecorder // set by Start before the first run
	metrics  *metrics

	// detachWanted is closed when the first claim waits for the end of an attachment.
	detachWanted     chan struct{}
	detachOnce       sync.Once
	mu               sync.Mutex // guards all below
	backoffs         map[reconcile.Request]backoff
	waitingForDetach map[string]reconcile.Request // by volume: who waits until it is detached
	cleaned          map[reconcile.Request]string // what was found to need no more tidying
}

// New makes a Resizer. It starts nothing.
func New(deps Deps, config Config) (*Resizer, error) {
	if deps.Client == nil || deps.Driver == nil {
		return nil, errors.New("make resizer: Deps.Client and Deps.Driver are required")
	}
	if config.DriverName == "" {
		return nil, errors.New("make resizer: Config.DriverName is required")
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
	r := &Resizer{
		deps: deps, config: config, recorder: deps.Recorder, metrics: newMetrics(config.DriverName),
		factory:  informers.NewSharedInformerFactoryWithOptions(deps.Client, 0, informers.WithTransform(trimClaim)),
		backoffs: map[reconcile.Request]backoff{}, waitingForDetach: map[string]reconcile.Request{},
		cleaned: map[reconcile.Request]string{}, detachWanted: make(chan struct{}),
	}
	return r, r.build()
}

func (r *Resizer) build() error {
	informer := r.factory.Core().V1().PersistentVolumeClaims().Informer()
	var err error
	r.claims, err = client.New(r.deps.Client.CoreV1().PersistentVolumeClaims, informer,
		client.Config[*corev1.PersistentVolumeClaim]{Resource: corev1.Resource("persistentvolumeclaims")})
	if err != nil {
		return fmt.Errorf("make resizer: %w", err)
	}
	r.runner, err = controller.New(reconcile.Func(r.reconcile), controller.Deps{
		Logger: r.deps.Logger, Clock: r.deps.Clock, Registerer: r.deps.Registerer,
	}, controller.Config{
		Name: "resizer of " + r.config.DriverName, Workers: r.config.Workers,
		BackoffMin: apiRetryMin, BackoffMax: apiRetryMax,
	})
	if err != nil {
		return fmt.Errorf("make resizer: %w", err)
	}
	r.runner.Watch(controller.For(informer, controller.Changed(), func(e controller.Event) bool {
		claim, ok := e.Object.(*corev1.PersistentVolumeClaim)
		return ok && needsWork(claim)
	}))
	return nil
}

// Start makes volumes larger until ctx ends, and returns when no call to the driver runs any more. What was begun then
// is taken up by the next.
func (r *Resizer) Start(ctx context.Context) error {
	if r.recorder == nil {
		recorder, stop, err := eventsink.StartRecorder(ctx, eventsink.Deps{
			Client: r.deps.Client.CoreV1(), Clock: r.deps.Clock, Logger: r.deps.Logger,
		}, eventsink.Config{}, corev1.EventSource{Component: timelineOwner + " " + r.config.DriverName})
		if err != nil {
			return fmt.Errorf("start resizer of driver %q: %w", r.config.DriverName, err)
		}
		defer stop()
		r.recorder = recorder
	}
	if r.deps.Registerer != nil {
		if err := r.deps.Registerer.Register(r.metrics); err != nil {
			return fmt.Errorf("start resizer of driver %q: register metrics: %w", r.config.DriverName, err)
		}
		defer r.deps.Registerer.Unregister(r.metrics)
	}
	watching, stop := context.WithCancel(ctx)
	var waker sync.WaitGroup
	defer waker.Wait()
	defer r.factory.Shutdown()
	defer stop()
	waker.Go(func() { r.watchDetachments(watching) })
	r.factory.StartWithContext(watching)
	return r.runner.Start(ctx)
}

// Ready returns nil once the cache is filled and the workers run.
func (r *Resizer) Ready() error { return r.runner.Ready() }

// watchDetachments has those tried again whose volumes could not grow while they were attached, as soon as they are not.
// Nothing is watched before the first one waits.
func (r *Resizer) watchDetachments(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-r.detachWanted:
	}
	err := r.deps.Driver.NotifyDeletable(ctx, func(volume string) {
		r.mu.Lock()
		key, waits := r.waitingForDetach[volume]
		delete(r.waitingForDetach, volume)
		if waits {
			delete(r.backoffs, key)
		}
		r.mu.Unlock()
		if waits {
			r.runner.Enqueue(key)
		}
	})
	if err != nil && ctx.Err() == nil {
		r.deps.Logger.Warn("cannot hear of volumes that are detached; those that could not grow while attached are tried again later",
			"error", err)
	}
}

// trimClaim keeps of a claim what an expansion is about: there may be very many.
func trimClaim(obj any) (any, error) {
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok {
		return obj, nil
	}
	claim.ObjectMeta = metav1.ObjectMeta{
		Name: claim.Name, Namespace: claim.Namespace, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
		DeletionTimestamp: claim.DeletionTimestamp,
	}
	return claim, nil
}
