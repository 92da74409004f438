package attacher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/reconcile"
)

const (
	// DefaultWorkers is how many VolumeAttachments are synced at the same time.
	DefaultWorkers = 10
	// DefaultTimeout is how long one call to the driver may take.
	DefaultTimeout = 15 * time.Second
	// DefaultVerifyPeriod is the time between verifications of what is published.
	DefaultVerifyPeriod = time.Minute

	// nodeIDAnnotation and handleAnnotation, on a VolumeAttachment, record what was published and where, because its
	// PersistentVolume and CSINode may have been deleted when it has to be unpublished. external-attacher uses the first
	// one too.
	nodeIDAnnotation = "csi.alpha.kubernetes.io/node-id"
	handleAnnotation = "berth.dev/csi-volume-handle"

	retryMin, retryMax = 500 * time.Millisecond, time.Minute
)

// Publisher has the calls to the driver; csi.NewControllerClient returns one for a connection.
type Publisher interface {
	ControllerPublishVolume(context.Context, *csi.ControllerPublishVolumeRequest, ...grpc.CallOption,
	) (*csi.ControllerPublishVolumeResponse, error)
	ControllerUnpublishVolume(context.Context, *csi.ControllerUnpublishVolumeRequest, ...grpc.CallOption,
	) (*csi.ControllerUnpublishVolumeResponse, error)
	ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest, ...grpc.CallOption,
	) (*csi.ControllerGetCapabilitiesResponse, error)
}

// Deps are the dependencies of an Attacher. Client and Driver are required; by default Logger discards and Clock is the real
// clock.
type Deps struct {
	// Client needs to watch VolumeAttachments, PersistentVolumes and CSINodes, to patch VolumeAttachments and their
	// status, and, for volumes with a controllerPublishSecretRef, to get those Secrets.
	Client kubernetes.Interface
	Driver Publisher
	Logger *slog.Logger
	Clock  clock.WithTicker
	// Registerer registers the metrics of the work queue while the attacher runs. By default there are none.
	Registerer prometheus.Registerer
}

// Config is the configuration of an Attacher. DriverName is required.
type Config struct {
	// DriverName is the driver's name, which is spec.attacher of the VolumeAttachments to sync.
	DriverName string
	// Workers is how many are synced at the same time. Default DefaultWorkers.
	Workers int
	// Timeout is how long one call to the driver may take. Default DefaultTimeout.
	Timeout time.Duration
	// VerifyPeriod is the time between comparisons of the VolumeAttachments with what the driver lists as published, if it
	// can list that (a Lister with LIST_VOLUMES_PUBLISHED_NODES). Default DefaultVerifyPeriod; negative means never.
	VerifyPeriod time.Duration
}

// Attacher attaches and detaches the volumes of VolumeAttachments. Start runs it, once.
type Attacher struct {
	deps      Deps
	config    Config
	finalizer string

	factory     informers.SharedInformerFactory
	attachments storagelisters.VolumeAttachmentLister
	csiNodes    storagelisters.CSINodeLister
	volumes     corelisters.PersistentVolumeLister
	runner      *controller.TypedController[string] // its keys are the names of VolumeAttachments

	// unknownPublications counts how often the driver has listed publications without VolumeAttachment. Only the
	// verification uses it.
	unknownPublications map[publication]int

	mu      sync.Mutex // guards missing
	missing map[string]types.UID
}

// New returns an Attacher. It starts nothing.
func New(deps Deps, config Config) (*Attacher, error) {
	if deps.Client == nil || deps.Driver == nil {
		return nil, errors.New("attacher: Deps.Client and Deps.Driver are required")
	}
	if config.DriverName == "" {
		return nil, errors.New("attacher: Config.DriverName is required")
	}
	if config.Workers <= 0 {
		config.Workers = DefaultWorkers
	}
	if config.Timeout <= 0 {
		config.Timeout = DefaultTimeout
	}
	if config.VerifyPeriod == 0 {
		config.VerifyPeriod = DefaultVerifyPeriod
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	deps.Logger = deps.Logger.With("driver", config.DriverName)
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	factory := informers.NewSharedInformerFactory(deps.Client, 0)
	a := &Attacher{
		deps: deps, config: config, factory: factory,
		unknownPublications: make(map[publication]int), missing: make(map[string]types.UID),
		finalizer:   "external-attacher/" + sanitize(config.DriverName),
		attachments: factory.Storage().V1().VolumeAttachments().Lister(),
		csiNodes:    factory.Storage().V1().CSINodes().Lister(),
		volumes:     factory.Core().V1().PersistentVolumes().Lister(),
	}
	var err error
	a.runner, err = controller.NewTyped(reconcile.TypedFunc[string](a.reconcile),
		controller.Deps{Logger: deps.Logger, Clock: deps.Clock, Registerer: deps.Registerer},
		controller.Config{Name: "attacher of " + config.DriverName, Workers: config.Workers, BackoffMin: retryMin, BackoffMax: retryMax})
	if err != nil {
		return nil, err
	}
	return a, a.watch()
}

// sanitize converts a driver's name to a valid finalizer, as external-attacher does.
func sanitize(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, name)
}

// byNode indexes VolumeAttachments by their node.
const byNode = "node"

// watch adds the controller's sources: VolumeAttachments that are created, deleted or lose their attachment, and those of a
// node whose CSINode changes. Most other changes of a VolumeAttachment are the attacher's own writes, and a failed one has
// to wait for its backoff. Nothing is reconciled for PersistentVolumes; as a source they are in the cache before it starts.
func (a *Attacher) watch() error {
	core, storage := a.factory.Core().V1(), a.factory.Storage().V1()
	attachments := storage.VolumeAttachments().Informer()
	err := attachments.AddIndexers(cache.Indexers{byNode: func(obj any) ([]string, error) {
		if va, ok := obj.(*storagev1.VolumeAttachment); ok {
			return []string{va.Spec.NodeName}, nil
		}
		return nil, nil
	}})
	if err != nil {
		return fmt.Errorf("attacher: index volume attachments: %w", err)
	}
	a.runner.Watch(controller.Watches(attachments, func(va *storagev1.VolumeAttachment) []string { return []string{va.Name} },
		needsSync))
	a.runner.Watch(controller.Watches(storage.CSINodes().Informer(), func(node *storagev1.CSINode) []string {
		names, _ := attachments.GetIndexer().IndexKeys(byNode, node.Name) // fails only for an unknown index
		return names
	}, func(event controller.Event) bool { return event.Type != controller.Deleted }))
	a.runner.Watch(controller.Watches(core.PersistentVolumes().Informer(),
		func(*corev1.PersistentVolume) []string { return nil }))
	return nil
}

// needsSync accepts events after which a VolumeAttachment is new, is being deleted, or is no longer attached.
func needsSync(event controller.Event) bool {
	va, ok := event.Object.(*storagev1.VolumeAttachment)
	if !ok || event.Type == controller.Deleted {
		return false
	}
	old, known := event.Old.(*storagev1.VolumeAttachment)
	return !known || old.UID != va.UID || old.DeletionTimestamp == nil && va.DeletionTimestamp != nil ||
		old.Status.Attached && !va.Status.Attached
}

// Start syncs VolumeAttachments until ctx ends, and returns when no call to the driver runs any more.
func (a *Attacher) Start(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var verifying sync.WaitGroup
	defer a.factory.Shutdown()
	defer verifying.Wait()
	defer cancel()
	a.factory.StartWithContext(ctx)
	verifying.Go(contain.Loop(ctx, "attacher.verify", "", func(ctx context.Context) {
		if cache.WaitFor(ctx, "", a.factory.Storage().V1().VolumeAttachments().Informer().HasSyncedChecker()) {
			a.verifyPeriodically(ctx)
		}
	}))
	return a.runner.Start(ctx)
}

// RetryNow retries all that wait for the delay after a failure at once, because the driver is back.
func (a *Attacher) RetryNow() { a.runner.RetryFailed() }

// Ready returns nil once the caches are filled and the workers run.
func (a *Attacher) Ready() error { return a.runner.Ready() }

// Healthy returns an error while a worker is stuck.
func (a *Attacher) Healthy() error { return a.runner.Healthy() }
