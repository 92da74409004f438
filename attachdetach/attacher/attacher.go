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
	"github.com/berth-dev/berth/internal/startonce"
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
	// status, and PersistentVolumes that external-attacher has attached, and, for volumes with a controllerPublishSecretRef, to get those
	// Secrets.
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

// key is the name of what is reconciled: a VolumeAttachment, or a PersistentVolume on which external-attacher has left its finalizer.
type key struct{ attachment, volume string }

// String returns the key for the log.
func (k key) String() string {
	if k.volume != "" {
		return "persistent volume " + k.volume
	}
	return k.attachment
}

func attachmentKeys(names ...string) []key {
	keys := make([]key, 0, len(names))
	for _, name := range names {
		keys = append(keys, key{attachment: name})
	}
	return keys
}

func volumeKeys(names ...string) []key {
	keys := make([]key, 0, len(names))
	for _, name := range names {
		keys = append(keys, key{volume: name})
	}
	return keys
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
	runner      *controller.TypedController[key]
	once        startonce.Guard

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
	a.runner, err = controller.NewTyped(reconcile.TypedFunc[key](a.reconcile),
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

// byNode and byVolume index VolumeAttachments by their node and by their PersistentVolume.
const byNode, byVolume = "node", "volume"

// watch adds the controller's sources: VolumeAttachments that are created, deleted or lose their attachment, those of a
// node whose CSINode changes, and PersistentVolumes that have lost their last one. Most other changes of a VolumeAttachment are
// the attacher's own writes, and a failed one has to wait for its backoff.
func (a *Attacher) watch() error {
	core, storage := a.factory.Core().V1(), a.factory.Storage().V1()
	attachments := storage.VolumeAttachments().Informer()
	indexOf := func(values func(va *storagev1.VolumeAttachment) []string) cache.IndexFunc {
		return func(obj any) ([]string, error) {
			if va, ok := obj.(*storagev1.VolumeAttachment); ok {
				return values(va), nil
			}
			return nil, nil
		}
	}
	err := attachments.AddIndexers(cache.Indexers{
		byNode: indexOf(func(va *storagev1.VolumeAttachment) []string { return []string{va.Spec.NodeName} }), byVolume: indexOf(volumeOf),
	})
	if err != nil {
		return fmt.Errorf("attacher: index volume attachments: %w", err)
	}
	deleted := func(event controller.Event) bool { return event.Type == controller.Deleted }
	a.runner.Watch(controller.Watches(attachments, func(va *storagev1.VolumeAttachment) []key { return attachmentKeys(va.Name) },
		needsSync))
	a.runner.Watch(controller.Watches(storage.CSINodes().Informer(), func(node *storagev1.CSINode) []key {
		names, _ := attachments.GetIndexer().IndexKeys(byNode, node.Name) // fails only for an unknown index
		return attachmentKeys(names...)
	}, func(event controller.Event) bool { return !deleted(event) }))
	a.runner.Watch(controller.Watches(core.PersistentVolumes().Informer(),
		func(pv *corev1.PersistentVolume) []key { return volumeKeys(pv.Name) },
		func(event controller.Event) bool { return !deleted(event) && a.isLeft(event.Object) }))
	a.runner.Watch(controller.Watches(attachments, func(va *storagev1.VolumeAttachment) []key { return volumeKeys(volumeOf(va)...) },
		deleted))
	return nil
}

// needsSync accepts events after which a VolumeAttachment is new, is being deleted, is no longer attached, or is attached and has an error:
// a publication that was repeated because the cache was behind has failed, and the cache may have been up to date at its next attempt.
func needsSync(event controller.Event) bool {
	va, ok := event.Object.(*storagev1.VolumeAttachment)
	if !ok || event.Type == controller.Deleted {
		return false
	}
	old, known := event.Old.(*storagev1.VolumeAttachment)
	return !known || old.UID != va.UID || old.DeletionTimestamp == nil && va.DeletionTimestamp != nil ||
		old.Status.Attached && !va.Status.Attached || va.Status.Attached && va.Status.AttachError != nil
}

// Start syncs VolumeAttachments until ctx ends, and returns when no call to the driver runs any more.
func (a *Attacher) Start(ctx context.Context) error {
	if err := a.once.Begin("attacher of " + a.config.DriverName); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var others sync.WaitGroup
	defer a.factory.Shutdown()
	defer others.Wait()
	defer cancel()
	a.factory.StartWithContext(ctx)
	others.Go(contain.Loop(ctx, "attacher.verify", "", func(ctx context.Context) {
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
