package images

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/distribution/reference"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
)

const (
	defaultHigh     = 85
	defaultLow      = 80
	defaultMinAge   = 2 * time.Minute
	defaultGCPeriod = 5 * time.Minute
)

// CollectorService is what a Collector needs of the CRI.
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
	// High is how full the images' file system may become before images are removed, and Low how full it may be
	// afterwards, in percent; 85 and 80 if both are zero. A High of 100 removes nothing.
	High, Low int
	// MaxAge is how long nobody may have used an image, as far as this process has seen, before it is removed however
	// empty the disk is; for ever if zero.
	MaxAge time.Duration
	// MinAge is how long an image has to have been known before it is removed; 2 min if zero.
	MinAge time.Duration
	// Period is how often the file system is looked at; 5 min if zero. The kernel has no event for a full disk.
	Period time.Duration
}

// CollectorDeps are what a Collector needs from others.
type CollectorDeps struct {
	Service CollectorService
	// ImagesInUse tells the images that Pods are about to use although no container does yet, by any name; it may be nil.
	ImagesInUse func() []string
	// Usage measures the file system at a mount point, in bytes; nil asks the kernel.
	Usage func(mountpoint string) (capacity, available uint64, err error)
	// OnListed, if set, is told of each list of all images, and when it was asked for.
	OnListed func(images []*runtimeapi.Image, asked time.Time)
	// OnRemoved, if set, is told that images were removed; Count, if set, of each of them, and why: "space" or "age".
	OnRemoved    func()
	CountRemoval func(reason string)
	// Recorder and Node are for the events FreeDiskSpaceFailed and ImageGCFailed; the Recorder may be nil.
	Recorder record.EventRecorder
	Node     *corev1.ObjectReference
	// Logger and Clock may be nil.
	Logger *slog.Logger
	Clock  clock.WithTicker
}

// Collector removes images that nobody has used for longest when the disk is full.
type Collector struct {
	config CollectorConfig
	deps   CollectorDeps
	// records is what is known of each image, by id. It belongs to the goroutine of Start.
	records map[string]*imageRecord
}

type imageRecord struct{ firstSeen, lastUsed time.Time }

// NewCollector makes a Collector. Start runs it.
func NewCollector(deps CollectorDeps, config CollectorConfig) (*Collector, error) {
	if config.High == 0 && config.Low == 0 {
		config.High, config.Low = defaultHigh, defaultLow
	}
	switch {
	case deps.Service == nil:
		return nil, errors.New("image collector: Deps.Service is needed")
	case config.High < 0 || config.High > 100 || config.Low < 0 || config.Low > config.High:
		return nil, fmt.Errorf("image collector: High %d and Low %d: want 0 <= Low <= High <= 100", config.High, config.Low)
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
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	return &Collector{config: config, deps: deps, records: map[string]*imageRecord{}}, nil
}

// Start looks at the disk each period until ctx ends.
func (c *Collector) Start(ctx context.Context) error {
	if c.config.High == 100 && c.config.MaxAge == 0 {
		<-ctx.Done()
		return nil
	}
	ticker := c.deps.Clock.NewTicker(c.config.Period)
	defer ticker.Stop()
	failed := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		err := c.collect(ctx)
		if err != nil && ctx.Err() == nil {
			c.deps.Logger.Warn("removing unused images failed", "error", err)
			if failed { // once may happen to anybody
				c.deps.Recorder.Event(c.deps.Node, corev1.EventTypeWarning, "ImageGCFailed", err.Error())
			}
		}
		failed = err != nil
	}
}

// collect removes unused images if the disk is too full.
func (c *Collector) collect(ctx context.Context) error {
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
		return fmt.Errorf("ask for the file system of images: %w", errors.Join(err, errNoFilesystem(info)))
	}
	dir := info.ImageFilesystems[0].GetFsId().GetMountpoint()
	capacity, available, err := c.deps.Usage(dir)
	if err != nil {
		return err
	}
	if capacity == 0 {
		c.deps.Recorder.Event(c.deps.Node, corev1.EventTypeWarning, "InvalidDiskCapacity",
			"invalid capacity 0 on image filesystem")
		return fmt.Errorf("measure the file system of images at %q: its capacity is 0", dir)
	}
	if full := 100 - int(available*100/capacity); full < c.config.High {
		return nil
	}
	need := int64(capacity)*int64(100-c.config.Low)/100 - int64(available)
	freed, err := c.freeSpace(ctx, unused, need)
	if freed < need {
		err = errors.Join(err, fmt.Errorf("wanted to free %d bytes, but freed %d: what is left is in use or too new",
			need, freed))
		c.deps.Recorder.Event(c.deps.Node, corev1.EventTypeWarning, "FreeDiskSpaceFailed", err.Error())
	}
	return err
}

func errNoFilesystem(info *runtimeapi.ImageFsInfoResponse) error {
	if info != nil && len(info.ImageFilesystems) == 0 {
		return errors.New("the container runtime names none")
	}
	return nil
}

// listUnused lists the images that nobody uses, the one not used for longest first.
func (c *Collector) listUnused(ctx context.Context) ([]*runtimeapi.Image, error) {
	asked := c.deps.Clock.Now()
	listed, err := c.deps.Service.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	if c.deps.OnListed != nil {
		c.deps.OnListed(listed.Images, asked)
	}
	containers, err := c.deps.Service.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	used := map[string]bool{}
	for _, each := range containers.Containers {
		used[each.ImageRef], used[each.ImageId], used[each.GetImage().GetImage()] = true, true, true
	}
	if c.deps.ImagesInUse != nil {
		for _, name := range c.deps.ImagesInUse() {
			used[fullName(name)] = true
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

// fullName is the name as the runtime lists it, with its registry and tag.
func fullName(name string) string {
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return name // an id
	}
	return reference.TagNameOnly(named).String()
}

func inUse(image *runtimeapi.Image, used map[string]bool) bool {
	if used[image.Id] {
		return true
	}
	known := func(name string) bool { return used[name] }
	return slices.ContainsFunc(image.RepoTags, known) || slices.ContainsFunc(image.RepoDigests, known)
}

// removeExpired removes the images that nobody has used for too long, and returns the others.
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

// remove removes an image for the sake of space or age, and tells which.
func (c *Collector) remove(ctx context.Context, image *runtimeapi.Image, why string) error {
	_, err := c.deps.Service.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{
		Image: &runtimeapi.ImageSpec{Image: image.Id},
	})
	if err != nil {
		return fmt.Errorf("remove image %q: %w", image.Id, err)
	}
	delete(c.records, image.Id)
	if c.deps.CountRemoval != nil {
		c.deps.CountRemoval(why)
	}
	c.deps.Logger.Info("removed an image that nobody uses", "for", why, "image", image.Id, "names", image.RepoTags,
		"bytes", image.Size)
	return nil
}

// freeSpace removes images until so many bytes are free.
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
		return 0, 0, fmt.Errorf("measure the file system of images at %q: %w", mountpoint, err)
	}
	return fs.Blocks * uint64(fs.Bsize), fs.Bavail * uint64(fs.Bsize), nil
}
