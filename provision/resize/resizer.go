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
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/eventsink"
	"github.com/berth-dev/berth/provision/claimretry"
	"github.com/berth-dev/berth/reconcile"
	"github.com/berth-dev/berth/timeline"
)

const (
	// DefaultWorkers is how many volumes are expanded at once.
	DefaultWorkers = 10

	// timelineOwner is the owner of the stages in timelines.
	timelineOwner = "resizer"
	// claimKind is the kind of a claim in timelines.
	claimKind = "PersistentVolumeClaim"

	// apiRetryMin and apiRetryMax bound the backoff of failed API writes.
	apiRetryMin, apiRetryMax = 100 * time.Millisecond, time.Minute
)

// Capabilities are a driver's capabilities of volume expansion.
type Capabilities struct {
	// Controller: its controller service expands volumes.
	Controller bool
	// Node: only its node service expands volumes.
	Node bool
}

// ExpandResult is the result of ExpandVolume.
type ExpandResult struct {
	// Capacity is the size of the expanded volume in bytes.
	Capacity int64
	// NodeExpansionRequired: the node has to expand the volume as well, mostly its file system.
	NodeExpansionRequired bool
}

// Driver expands volumes. Its errors carry the gRPC status of the driver's response; an error without a status means that
// nothing was sent. It is safe for concurrent use.
type Driver interface {
	// Capabilities returns the driver's capabilities.
	Capabilities(ctx context.Context) (Capabilities, error)
	// ExpandVolume expands the volume to at least size bytes. It may be repeated.
	ExpandVolume(ctx context.Context, pv *corev1.PersistentVolume, size int64) (ExpandResult, error)
	// NotifyDetached calls notify with the name of each volume of the driver whose VolumeAttachment is deleted, until ctx ends.
	NotifyDetached(ctx context.Context, notify func(volume string)) error
}

// Deps are what a Resizer works with. Client and Driver are required; the others have the usual defaults.
type Deps struct {
	// Client watches claims, patches them and their status, gets and patches PersistentVolumes, and writes events.
	Client kubernetes.Interface
	Driver Driver
	// Informers watches claims. Those of NewInformers are the default; controllers of one driver share them.
	Informers informers.SharedInformerFactory
	// Timeline records each try as a stage of the claim. It may be nil.
	Timeline *timeline.Recorder
	// Recorder records events. The default is a recorder that writes to the API server.
	Recorder record.EventRecorder
	Logger   *slog.Logger
	Clock    clock.WithTicker
	// Registerer registers the metrics while the resizer runs. Nil: there are none.
	Registerer prometheus.Registerer
}

// Config is how a Resizer works. DriverName is required.
type Config struct {
	// DriverName is the name of the driver whose volumes are expanded.
	DriverName string
	// Workers is how many volumes are expanded at once. Default DefaultWorkers.
	Workers int
}

type claims = client.Resource[*corev1.PersistentVolumeClaim, *corev1.PersistentVolumeClaimList,
	typedcorev1.PersistentVolumeClaimInterface]

// Resizer expands the volumes of one driver. Start runs it, once.
type Resizer struct {
	deps     Deps
	config   Config
	factory  informers.SharedInformerFactory
	claims   *claims
	runner   *controller.Controller
	recorder record.EventRecorder // set by Start before the first run
	metrics  *metrics

	// detachWanted is closed when the first claim waits for the end of an attachment.
	retries          *claimretry.Delays
	detachWanted     chan struct{}
	detachOnce       sync.Once
	mu               sync.Mutex                   // guards all below
	waitingForDetach map[string]reconcile.Request // by volume: the claim that waits until it is detached
	cleaned          map[reconcile.Request]string // what needs no cleanup any more
}

// New returns a Resizer. It starts nothing.
func New(deps Deps, config Config) (*Resizer, error) {
	switch {
	case deps.Client == nil:
		return nil, errors.New("resize: Deps.Client is required")
	case deps.Driver == nil:
		return nil, errors.New("resize: Deps.Driver is required")
	case config.DriverName == "":
		return nil, errors.New("resize: Config.DriverName is required")
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
		deps.Informers = NewInformers(deps.Client)
	}
	r := &Resizer{
		deps: deps, config: config, recorder: deps.Recorder, metrics: newMetrics(config.DriverName),
		factory: deps.Informers, retries: claimretry.New(deps.Clock), waitingForDetach: map[string]reconcile.Request{},
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
		return fmt.Errorf("resize: %w", err)
	}
	r.runner, err = controller.New(reconcile.Func(r.reconcile), controller.Deps{
		Logger: r.deps.Logger, Clock: r.deps.Clock, Registerer: r.deps.Registerer,
	}, controller.Config{
		Name: "resizer of " + r.config.DriverName, Workers: r.config.Workers,
		BackoffMin: apiRetryMin, BackoffMax: apiRetryMax,
	})
	if err != nil {
		return fmt.Errorf("resize: %w", err)
	}
	r.runner.Watch(controller.For(informer, controller.Changed(), func(e controller.Event) bool {
		claim, ok := e.Object.(*corev1.PersistentVolumeClaim)
		return ok && needsWork(claim)
	}))
	return nil
}

// Start expands volumes until ctx ends, and returns when no call of the driver runs any more. The next process continues
// what is unfinished then.
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
	waker.Go(contain.Loop(watching, "resize.watchDetachments", "", r.watchDetachments))
	r.factory.StartWithContext(watching)
	return r.runner.Start(ctx)
}

// Ready returns nil once the cache is filled and the workers run.
func (r *Resizer) Ready() error { return r.runner.Ready() }

// Healthy returns an error while a worker is stuck.
func (r *Resizer) Healthy() error { return r.runner.Healthy() }

// watchDetachments retries the expansion of volumes that could not be expanded while they were attached, as soon as they
// are detached. It watches nothing before the first such volume.
func (r *Resizer) watchDetachments(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-r.detachWanted:
	}
	err := r.deps.Driver.NotifyDetached(ctx, func(volume string) {
		r.mu.Lock()
		key, waits := r.waitingForDetach[volume]
		delete(r.waitingForDetach, volume)
		r.mu.Unlock()
		if waits {
			r.retries.Forget(key)
			r.runner.Enqueue(key)
		}
	})
	if err != nil && ctx.Err() == nil {
		r.deps.Logger.Warn("cannot watch VolumeAttachments; volumes that could not be expanded while attached are retried after their backoff",
			"error", err)
	}
}

// NewInformers returns informers that keep of a claim what its expansion and its modification need.
func NewInformers(client kubernetes.Interface) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(trimClaim))
}

// trimClaim removes the parts of a claim that an expansion does not need, because there may be very many claims.
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
