package images

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet/images/imagename"
)

const (
	defaultHigh     = 85
	defaultLow      = 80
	defaultMinAge   = 2 * time.Minute
	defaultGCPeriod = 5 * time.Minute
)

// CollectorService is the part of the CRI that a Collector uses.
type CollectorService interface {
	ListImages(ctx context.Context, in *runtimeapi.ListImagesRequest, opts ...grpc.CallOption,
	) (*runtimeapi.ListImagesResponse, error)
	RemoveImage(ctx context.Context, in *runtimeapi.RemoveImageRequest, opts ...grpc.CallOption,
	) (*runtimeapi.RemoveImageResponse, error)
	ImageFsInfo(ctx context.Context, in *runtimeapi.ImageFsInfoRequest, opts ...grpc.CallOption,
	) (*runtimeapi.ImageFsInfoResponse, error)
	ListContainers(ctx context.Context, in *runtimeapi.ListContainersRequest, opts ...grpc.CallOption,
	) (*runtimeapi.ListContainersResponse, error)
}

// CollectorConfig are the values of a Collector.
type CollectorConfig struct {
	// High is the disk usage of the images' file system above which images are removed, and Low the usage that removing
	// aims at, in percent; 85 and 80 if both are zero. With a High of 100 no image is removed for disk usage.
	High, Low int
	// MaxAge is how long an image may be unused, as far as this process has observed, before it is removed whatever the
	// disk usage; zero means no limit.
	MaxAge time.Duration
	// MinAge is how long an image must have been known before it may be removed for disk usage, also by RemoveUnused; 2 min if zero.
	MinAge time.Duration
	// Period is the interval of checks; 5 min if zero. The kernel has no event for a full disk.
	Period time.Duration
}

// CollectorDeps are what a Collector works with. Service is required.
type CollectorDeps struct {
	Service CollectorService
	// ImagesInUse returns the images, by any name, that Pods are about to use although no container does yet; it may be
	// nil.
	ImagesInUse func() []string
	// Usage measures the file system at a mount point, in bytes; nil means statfs(2).
	Usage func(mountpoint string) (capacity, available uint64, err error)
	// OnListed, if set, is called with each list of all images and the time when it was requested.
	OnListed func(images []*runtimeapi.Image, requested time.Time)
	// OnRemoved, if set, is called after images were removed; CountRemoval, if set, for each of them with the reason:
	// "space" or "age".
	OnRemoved    func()
	CountRemoval func(reason string)
	// Recorder and Node are used for the events FreeDiskSpaceFailed and ImageGCFailed; the Recorder may be nil.
	Recorder record.EventRecorder
	Node     *corev1.ObjectReference
	// Tracer makes a span for each collection; nil makes none.
	Tracer trace.Tracer
	// Logger and Clock may be nil.
	Logger *slog.Logger
	Clock  clock.WithTicker
}

// Collector removes the least recently used images when the disk is full.
type Collector struct {
	config  CollectorConfig
	deps    CollectorDeps
	mu      sync.Mutex              // guards records, and is held while images are removed
	records map[string]*imageRecord // what is known of each image, by id
}

// imageRecord is when an image was first seen and last used.
type imageRecord struct{ firstSeen, lastUsed time.Time }

// NewCollector returns a Collector. Start runs it.
func NewCollector(deps CollectorDeps, config CollectorConfig) (*Collector, error) {
	if config.High == 0 && config.Low == 0 {
		config.High, config.Low = defaultHigh, defaultLow
	}
	switch {
	case deps.Service == nil:
		return nil, errors.New("images: CollectorDeps.Service is required")
	case config.High < 0 || config.High > 100 || config.Low < 0 || config.Low > config.High:
		return nil, fmt.Errorf("images: CollectorConfig.High %d and Low %d: want 0 <= Low <= High <= 100", config.High, config.Low)
	}
	if config.MinAge == 0 {
		config.MinAge = defaultMinAge
	}
	if config.Period <= 0 {
		config.Period = defaultGCPeriod
	}
	if deps.Usage == nil {
		deps.Usage = usage
	}
	if deps.Recorder == nil {
		deps.Recorder = &record.FakeRecorder{}
	}
	if deps.Node == nil {
		deps.Node = &corev1.ObjectReference{Kind: "Node"}
	}
	if deps.Tracer == nil {
		deps.Tracer = noop.Tracer{}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	return &Collector{config: config, deps: deps, records: map[string]*imageRecord{}}, nil
}

// Start checks the disk usage each period until ctx ends. If neither usage nor age removes images, it records their ages only, for
// RemoveUnused.
func (c *Collector) Start(ctx context.Context) error {
	ticker := c.deps.Clock.NewTicker(c.config.Period)
	defer ticker.Stop()
	c.detect(ctx)
	failed := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		if c.config.High == 100 && c.config.MaxAge == 0 {
			c.detect(ctx)
			continue
		}
		err := c.collect(ctx)
		if err != nil && ctx.Err() == nil {
			c.deps.Logger.Warn("failed to remove unused images", "error", err)
			if failed { // a single failure is not reported
				c.deps.Recorder.Event(c.deps.Node, corev1.EventTypeWarning, "ImageGCFailed", err.Error())
			}
		}
		failed = err != nil
	}
}

// detect records which images are there: their age counts from now on.
func (c *Collector) detect(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.listUnused(ctx); err != nil && ctx.Err() == nil {
		c.deps.Logger.Warn("failed to list images; their age counts from the next check on", "error", err)
	}
}

// collect removes unused images if they are too old or the disk is too full.
func (c *Collector) collect(ctx context.Context) error {
	ctx, span := c.deps.Tracer.Start(ctx, "Images/GarbageCollect")
	defer span.End()
	c.mu.Lock()
	defer c.mu.Unlock()
	unused, err := c.listUnused(ctx)
	if err != nil {
		return err
	}
	unused, err = c.removeExpired(ctx, unused)
	if err != nil || c.config.High == 100 {
		return err
	}
	info, err := c.deps.Service.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil || len(info.ImageFilesystems) == 0 {
		return fmt.Errorf("get image file system: %w", errors.Join(err, errNoFilesystem(info)))
	}
	dir := info.ImageFilesystems[0].GetFsId().GetMountpoint()
	capacity, available, err := c.deps.Usage(dir)
	if err != nil {
		return err
	}
	if capacity == 0 {
		c.deps.Recorder.Event(c.deps.Node, corev1.EventTypeWarning, "InvalidDiskCapacity",
			"invalid capacity 0 on image filesystem")
		return fmt.Errorf("measure image file system at %q: its capacity is 0", dir)
	}
	if full := 100 - int(available*100/capacity); full < c.config.High {
		return nil
	}
	need := int64(capacity)*int64(100-c.config.Low)/100 - int64(available)
	freed, err := c.freeSpace(ctx, unused, need)
	if freed < need {
		err = errors.Join(err, fmt.Errorf("wanted to free %d bytes, but freed %d: the other images are in use or too new",
			need, freed))
		c.deps.Recorder.Event(c.deps.Node, corev1.EventTypeWarning, "FreeDiskSpaceFailed", err.Error())
	}
	return err
}

// RemoveUnused removes all images that no container or Pod uses, because the node is short of disk. It keeps those that are younger than
// MinAge: a Pod that was just bound to the node may be about to use them.
func (c *Collector) RemoveUnused(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	unused, err := c.listUnused(ctx)
	if err != nil {
		return err
	}
	_, err = c.freeSpace(ctx, unused, math.MaxInt64)
	return err
}

func errNoFilesystem(info *runtimeapi.ImageFsInfoResponse) error {
	if info != nil && len(info.ImageFilesystems) == 0 {
		return errors.New("the container runtime reports none")
	}
	return nil
}

// listUnused returns the images that no container or Pod uses, the least recently used first.
func (c *Collector) listUnused(ctx context.Context) ([]*runtimeapi.Image, error) {
	requested := c.deps.Clock.Now()
	listed, err := c.deps.Service.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	if c.deps.OnListed != nil {
		c.deps.OnListed(listed.Images, requested)
	}
	containers, err := c.deps.Service.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	used := map[string]bool{}
	for _, container := range containers.Containers {
		used[container.ImageRef], used[container.ImageId], used[container.GetImage().GetImage()] = true, true, true
	}
	if c.deps.ImagesInUse != nil {
		for _, name := range c.deps.ImagesInUse() {
			used[imagename.Full(name)] = true
		}
	}
	now, present := c.deps.Clock.Now(), map[string]bool{}
	var unused []*runtimeapi.Image
	for _, image := range listed.Images {
		present[image.Id] = true
		if c.records[image.Id] == nil {
			c.records[image.Id] = &imageRecord{firstSeen: now}
		}
		if inUse(image, used) {
			c.records[image.Id].lastUsed = now
		} else if !image.Pinned {
			unused = append(unused, image)
		}
	}
	for id := range c.records {
		if !present[id] {
			delete(c.records, id)
		}
	}
	slices.SortStableFunc(unused, func(a, b *runtimeapi.Image) int {
		x, y := c.records[a.Id], c.records[b.Id]
		if !x.lastUsed.Equal(y.lastUsed) {
			return x.lastUsed.Compare(y.lastUsed)
		}
		return x.firstSeen.Compare(y.firstSeen)
	})
	return unused, nil
}

func inUse(image *runtimeapi.Image, used map[string]bool) bool {
	if used[image.Id] {
		return true
	}
	known := func(name string) bool { return used[name] }
	return slices.ContainsFunc(image.RepoTags, known) || slices.ContainsFunc(image.RepoDigests, known)
}

// removeExpired removes the images that were unused for longer than MaxAge and returns the others.
func (c *Collector) removeExpired(ctx context.Context, unused []*runtimeapi.Image) (left []*runtimeapi.Image, err error) {
	if c.config.MaxAge == 0 {
		return unused, nil
	}
	now := c.deps.Clock.Now()
	var errs []error
	removed := false
	for _, image := range unused {
		record := c.records[image.Id]
		if now.Sub(record.firstSeen) <= c.config.MaxAge || now.Sub(record.lastUsed) <= c.config.MaxAge {
			left = append(left, image)
			continue
		}
		if err := c.remove(ctx, image, "age"); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = true
	}
	if removed && c.deps.OnRemoved != nil {
		c.deps.OnRemoved()
	}
	return left, errors.Join(errs...)
}

// remove removes an image and counts it under the reason.
func (c *Collector) remove(ctx context.Context, image *runtimeapi.Image, reason string) error {
	_, err := c.deps.Service.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{
		Image: &runtimeapi.ImageSpec{Image: image.Id},
	})
	if err != nil {
		return fmt.Errorf("remove image %q: %w", image.Id, err)
	}
	delete(c.records, image.Id)
	if c.deps.CountRemoval != nil {
		c.deps.CountRemoval(reason)
	}
	c.deps.Logger.Info("removed unused image", "reason", reason, "image", image.Id, "names", image.RepoTags,
		"bytes", image.Size)
	return nil
}

// freeSpace removes images until need bytes are freed.
func (c *Collector) freeSpace(ctx context.Context, unused []*runtimeapi.Image, need int64) (freed int64, err error) {
	now := c.deps.Clock.Now()
	var errs []error
	for _, image := range unused {
		if freed >= need {
			break
		}
		if now.Sub(c.records[image.Id].firstSeen) < c.config.MinAge {
			continue
		}
		if err := c.remove(ctx, image, "space"); err != nil {
			errs = append(errs, err)
			continue
		}
		freed += int64(image.Size)
	}
	if freed > 0 && c.deps.OnRemoved != nil {
		c.deps.OnRemoved()
	}
	return freed, errors.Join(errs...)
}

// usage measures the file system at a mount point.
func usage(mountpoint string) (capacity, available uint64, err error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(mountpoint, &fs); err != nil {
		return 0, 0, fmt.Errorf("measure image file system at %q: %w", mountpoint, err)
	}
	return fs.Blocks * uint64(fs.Bsize), fs.Bavail * uint64(fs.Bsize), nil
}
