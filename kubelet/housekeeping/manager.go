package housekeeping

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/images"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/logs"
	"github.com/berth-dev/berth/kubelet/logs/rotate"
	"github.com/berth-dev/berth/kubelet/node"
	"github.com/berth-dev/berth/kubelet/status"
)

// Config holds the values of a Manager.
type Config struct {
	NodeName, PodLogsDir string
	// LogMaxSize and LogMaxFiles limit the log files of a container; zero means the defaults of package rotate. With a negative
	// LogMaxSize no log is rotated.
	LogMaxSize  int64
	LogMaxFiles int
	// LogWorkers is how many logs are rotated at once, and LogPeriod the longest time between two checks of a log.
	LogWorkers int
	LogPeriod  time.Duration
	// ImageGCHigh and ImageGCLow are the thresholds of image garbage collection, in percent of the images' disk; a High of
	// zero collects none for space. ImageMinAge is how long an image is kept at least; zero is the default of package images.
	// ImageMaxAge is how long it may be unused; zero is no limit.
	ImageGCHigh, ImageGCLow  int
	ImageMinAge, ImageMaxAge time.Duration
}

// Workers knows the Pods of the node. *podworker.Manager is one.
type Workers interface {
	// Pods returns the Pods that have a worker.
	Pods() []*corev1.Pod
	// Has reports whether a Pod has a worker, and with it perhaps containers, volumes or files on the node.
	Has(uid types.UID) bool
}

// Volumes removes volumes and directories of Pods. *volumemanager.Manager is one.
type Volumes interface {
	CleanupOrphans(ctx context.Context, keep func(types.UID) bool) error
}

// Cgroups knows the cgroups of Pods. *cm.Manager is one.
type Cgroups interface {
	Pods() ([]types.UID, error)
	RemovePod(ctx context.Context, uid types.UID) error
}

// Allocations holds the resources that are allocated to Pods. *allocation.Store is one.
type Allocations interface {
	// Retain forgets the Pods for which keep returns false.
	Retain(keep func(types.UID) bool)
}

// ImageObserver learns of images from the garbage collection.
type ImageObserver struct {
	// Listed is called with each list of all images, and the time of its request.
	Listed func(images []*runtimeapi.Image, asked time.Time)
	// Removed is called after images were removed, Count for each of them with the reason.
	Removed func()
	Count   func(reason string)
}

// Deps holds what a Manager needs. Links is nil if container logs are not linked, and Tracer may be nil; all others are
// required.
type Deps struct {
	Runtime container.Runtime
	Workers Workers
	// PodEvents sends the changes of Pods' statuses, from which follows which containers run.
	PodEvents   *status.Broadcaster
	Volumes     Volumes
	Cgroups     Cgroups
	Allocations Allocations
	Links       *logs.Links
	Images      ImageObserver
	// Ready are closed when it is known which Pods have workers and which the runtime holds, and when cgroups exist: before
	// that nothing is an orphan.
	Ready    []<-chan struct{}
	Recorder record.EventRecorder
	Clock    clock.WithTicker
	Logger   *slog.Logger
	// Tracer makes the spans of garbage collections; nil makes none.
	Tracer trace.Tracer
}

func (d *Deps) validate() error {
	for _, dep := range []struct {
		name    string
		missing bool
	}{
		{"Runtime", d.Runtime == nil}, {"Workers", d.Workers == nil}, {"PodEvents", d.PodEvents == nil}, {"Volumes", d.Volumes == nil},
		{"Cgroups", d.Cgroups == nil}, {"Allocations", d.Allocations == nil}, {"Ready", len(d.Ready) == 0},
		{"Recorder", d.Recorder == nil}, {"Clock", d.Clock == nil}, {"Logger", d.Logger == nil},
	} {
		if dep.missing {
			return errors.New("housekeeping: Deps." + dep.name + " is required")
		}
	}
	return nil
}

// Manager keeps the node's disk from filling up: it rotates logs, and removes unused images and, after the start, what is left
// of Pods that no longer exist.
type Manager struct {
	config    Config
	deps      Deps
	rotator   *rotate.Rotator   // nil if no log is rotated
	collector *images.Collector // nil if images are not collected

	cleaning sync.Mutex // held during an attempt to clean up after Pods that no longer exist
	// orphansLeft is notified when an attempt has failed.
	orphansLeft wakeup.Signal
}

// New returns a Manager.
func New(deps Deps, config Config) (*Manager, error) {
	if err := deps.validate(); err != nil {
		return nil, err
	}
	m := &Manager{config: config, deps: deps, orphansLeft: wakeup.NewSignal()}
	var err error
	if config.LogMaxSize >= 0 {
		if m.rotator, err = rotate.New(rotate.Deps{
			Runtime: deps.Runtime, Clock: deps.Clock, Logger: deps.Logger.With("component", "logs"),
		}, rotate.Config{
			MaxSize: config.LogMaxSize, MaxFiles: config.LogMaxFiles, Workers: config.LogWorkers, Period: config.LogPeriod,
		}); err != nil {
			return nil, err
		}
		deps.PodEvents.Subscribe(func(event status.Event) { m.rotator.SetLogs(string(event.UID), m.openLogs(event)) })
	}
	if config.ImageGCHigh == 0 && config.ImageMaxAge == 0 {
		return m, nil
	}
	high, low := config.ImageGCHigh, config.ImageGCLow
	if high == 0 {
		high, low = 100, 100 // only the age decides
	}
	m.collector, err = m.NewImageCollector(images.CollectorConfig{High: high, Low: low, MinAge: config.ImageMinAge, MaxAge: config.ImageMaxAge})
	return m, err
}

// NewImageCollector returns an image garbage collector with its own thresholds.
func (m *Manager) NewImageCollector(config images.CollectorConfig) (*images.Collector, error) {
	return images.NewCollector(images.CollectorDeps{
		Service: m.deps.Runtime, ImagesInUse: m.usedImages, OnListed: m.deps.Images.Listed, OnRemoved: m.deps.Images.Removed,
		CountRemoval: m.deps.Images.Count, Tracer: m.deps.Tracer, Recorder: m.deps.Recorder, Node: node.Reference(m.config.NodeName), Clock: m.deps.Clock,
		Logger: m.deps.Logger.With("component", "images"),
	}, config)
}

// RemoveImages removes all images that no container uses and that are not too new, if images may be removed at all.
func (m *Manager) RemoveImages(ctx context.Context) error {
	if m.config.ImageGCHigh == 0 {
		return nil
	}
	return m.collector.RemoveUnused(ctx)
}

// Start works until ctx ends.
func (m *Manager) Start(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	if m.rotator != nil {
		group.Go(contain.Func("housekeeping.Start", "", func() error { return m.rotator.Start(ctx) }))
	}
	if m.collector != nil {
		group.Go(contain.Func("housekeeping.Start", "", func() error { return m.collector.Start(ctx) }))
	}
	group.Go(contain.Func("housekeeping.Start", "", func() error {
		m.runOrphanCleanup(ctx)
		return nil
	}))
	return group.Wait()
}

// openLogs returns the log files of the running containers of a Pod.
func (m *Manager) openLogs(event status.Event) []rotate.Log {
	if event.Removed {
		return nil
	}
	var open []rotate.Log
	dir := kuberuntime.PodLogsDir(m.config.PodLogsDir, event.Pod.Namespace, event.Pod.Name, event.UID)
	for s := range podutil.Statuses(&event.Status) {
		if s.State.Running == nil {
			continue
		}
		_, id, _ := strings.Cut(s.ContainerID, "://")
		path := filepath.Join(dir, kuberuntime.LogPath(s.Name, uint32(s.RestartCount)))
		open = append(open, rotate.Log{ContainerID: id, Path: path})
	}
	return open
}

// usedImages returns the images that Pods of this node name.
func (m *Manager) usedImages() []string {
	var names []string
	for _, pod := range m.deps.Workers.Pods() {
		for c := range podutil.Containers(&pod.Spec) {
			names = append(names, c.Image)
		}
		for i := range pod.Spec.Volumes {
			if image := pod.Spec.Volumes[i].Image; image != nil {
				names = append(names, image.Reference)
			}
		}
	}
	return names
}
