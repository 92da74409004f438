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
	"google.golang.org/grpc"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

const (
	// DefaultWorkers is how many VolumeAttachments are worked on at once.
	DefaultWorkers = 10
	// DefaultTimeout is how long one call to the driver may take.
	DefaultTimeout = 15 * time.Second
	// DefaultVerifyPeriod is the time between verifications of what is published.
	DefaultVerifyPeriod = time.Minute

	// nodeIDAnnotation and handleAnnotation, on a VolumeAttachment, are what was published and where, for the objects
	// that told may be gone when it is to be unpublished. The first is the name that external-attacher uses.
	nodeIDAnnotation = "csi.alpha.kubernetes.io/node-id"
	handleAnnotation = "berth.dev/csi-volume-handle"

	retryMin, retryMax = 500 * time.Millisecond, time.Minute
)

// Publisher is the calls to the driver; csi.NewControllerClient makes one of a connection.
type Publisher interface {
	ControllerPublishVolume(context.Context, *csi.ControllerPublishVolumeRequest, ...grpc.CallOption,
	) (*csi.ControllerPublishVolumeResponse, error)
	ControllerUnpublishVolume(context.Context, *csi.ControllerUnpublishVolumeRequest, ...grpc.CallOption,
	) (*csi.ControllerUnpublishVolumeResponse, error)
}

// Deps are what an Attacher works with. Client and Driver are required; Logger and Clock have the usual defaults.
type Deps struct {
	// Client needs to watch VolumeAttachments, PersistentVolumes and CSINodes, to patch VolumeAttachments and their
	// status, and, for volumes with a controllerPublishSecretRef, to get those Secrets.
	Client kubernetes.Interface
	Driver Publisher
	Logger *slog.Logger
	Clock  clock.WithTicker
}

// Config is how an Attacher works. DriverName is required.
type Config struct {
	// DriverName is the driver's name: the attacher of the VolumeAttachments to answer.
	DriverName string
	// Workers is how many are worked on at once. Default DefaultWorkers.
	Workers int
	// Timeout is how long one call to the driver may take. Default DefaultTimeout.
	Timeout time.Duration
	// VerifyPeriod is how often a driver that can list what is published (a Lister with LIST_VOLUMES_PUBLISHED_NODES) is
	// asked whether it agrees with the VolumeAttachments. Default DefaultVerifyPeriod; negative means never.
	VerifyPeriod time.Duration
}

// Attacher answers VolumeAttachments. Start runs it, once.
type Attacher struct {
	deps      Deps
	config    Config
	finalizer string

	factory     informers.SharedInformerFactory
	attachments storagelisters.VolumeAttachmentLister
	csiNodes    storagelisters.CSINodeLister
	volumes     corelisters.PersistentVolumeLister
	queue       workqueue.TypedRateLimitingInterface[string]
	synced      []toolscache.DoneChecker

	unknownPublications map[publication]int // how often the driver told of what no VolumeAttachment asks for; verify's alone
	mu                  sync.Mutex          // guards suspects
	missing             map[string]types.UID
}

// New makes an Attacher. It starts nothing.
func New(deps Deps, config Config) (*Attacher, error) {
	if deps.Client == nil || deps.Driver == nil {
		return nil, errors.New("make attacher: Deps.Client and Deps.Driver are required")
	}
	if config.DriverName == "" {
		return nil, errors.New("make attacher: Config.DriverName is required")
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
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryMin, retryMax),
			workqueue.TypedRateLimitingQueueConfig[string]{Clock: deps.Clock}),
	}
	return a, a.watch()
}

// sanitize makes a driver's name fit for a finalizer, as external-attacher does.
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

// watch puts VolumeAttachments into the queue that come, are deleted, or whose node's CSINode changes. Not every change
// of a VolumeAttachment does that: most are our own answers, and a failure has to wait its time.
func (a *Attacher) watch() error {
	attachments := a.factory.Storage().V1().VolumeAttachments().Informer()
	err := attachments.AddIndexers(toolscache.Indexers{byNode: func(obj any) ([]string, error) {
		if va, ok := obj.(*storagev1.VolumeAttachment); ok {
			return []string{va.Spec.NodeName}, nil
		}
		return nil, nil
	}})
	if err != nil {
		return fmt.Errorf("make attacher: index volume attachments: %w", err)
	}
	ofNode := func(obj any) {
		if node, ok := obj.(*storagev1.CSINode); ok {
			names, _ := attachments.GetIndexer().IndexKeys(byNode, node.Name) // fails only for an unknown index
			for _, name := range names {
				a.queue.Add(name)
			}
		}
	}
	for informer, handler := range map[toolscache.SharedIndexInformer]toolscache.ResourceEventHandlerFuncs{
		attachments: {
			AddFunc:    func(obj any) { a.onAttachmentChange(nil, obj) },
			UpdateFunc: a.onAttachmentChange,
		},
		a.factory.Storage().V1().CSINodes().Informer(): {
			AddFunc: ofNode, UpdateFunc: func(_, obj any) { ofNode(obj) },
		},
		a.factory.Core().V1().PersistentVolumes().Informer(): {},
	} {
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return fmt.Errorf("make attacher: add event handler: %w", err)
		}
		a.synced = append(a.synced, registration.HasSyncedChecker())
	}
	return nil
}

// onAttachmentChange puts the VolumeAttachment into the queue if it is new, is being deleted now, or lost its attachment.
func (a *Attacher) onAttachmentChange(before, now any) {
	va, ok := now.(*storagev1.VolumeAttachment)
	if !ok {
		return
	}
	old, known := before.(*storagev1.VolumeAttachment)
	if !known || old.UID != va.UID || old.DeletionTimestamp == nil && va.DeletionTimestamp != nil ||
		old.Status.Attached && !va.Status.Attached {
		a.queue.Add(va.Name)
	}
}

// Start answers VolumeAttachments until ctx ends, and returns when no call to the driver runs any more.
func (a *Attacher) Start(ctx context.Context) error {
	defer a.queue.ShutDown()
	watching, stop := context.WithCancel(ctx)
	defer a.factory.Shutdown()
	defer stop()
	a.factory.StartWithContext(watching)
	if !toolscache.WaitFor(ctx, "", a.synced...) {
		return nil // ctx has ended
	}
	var running sync.WaitGroup
	for range a.config.Workers {
		running.Go(func() { a.work(ctx) })
	}
	running.Go(func() { a.verifyPeriodically(ctx) })
	<-ctx.Done()
	a.queue.ShutDown()
	running.Wait()
	return nil
}

func (a *Attacher) work(ctx context.Context) {
	for {
		name, down := a.queue.Get()
		if down {
			return
		}
		if err := a.syncAttachment(ctx, name); err != nil {
			if ctx.Err() == nil {
				a.deps.Logger.Warn("cannot answer volume attachment; will retry", "attachment", name, "error", err)
			}
			a.queue.AddRateLimited(name)
		} else {
			a.queue.Forget(name)
		}
		a.queue.Done(name)
	}
}
