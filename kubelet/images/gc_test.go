package images_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/images"
)

// fakeDisk is a runtime with images of 10 bytes on a disk of 100.
type fakeDisk struct {
	mu         sync.Mutex
	images     []*runtimeapi.Image
	containers []*runtimeapi.Container
}

func (d *fakeDisk) ListImages(context.Context, *runtimeapi.ListImagesRequest, ...grpc.CallOption) (
	*runtimeapi.ListImagesResponse, error,
) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &runtimeapi.ListImagesResponse{Images: append([]*runtimeapi.Image(nil), d.images...)}, nil
}

func (d *fakeDisk) ListContainers(context.Context, *runtimeapi.ListContainersRequest, ...grpc.CallOption) (
	*runtimeapi.ListContainersResponse, error,
) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &runtimeapi.ListContainersResponse{Containers: d.containers}, nil
}

func (d *fakeDisk) RemoveImage(_ context.Context, in *runtimeapi.RemoveImageRequest, _ ...grpc.CallOption) (
	*runtimeapi.RemoveImageResponse, error,
) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, image := range d.images {
		if image.Id == in.Image.Image {
			d.images = append(d.images[:i:i], d.images[i+1:]...)
			break
		}
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

func (d *fakeDisk) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest, ...grpc.CallOption) (
	*runtimeapi.ImageFsInfoResponse, error,
) {
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{{
		FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/images"},
	}}}, nil
}

func (d *fakeDisk) ids() (out []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, image := range d.images {
		out = append(out, image.Id)
	}
	return out
}

// change modifies the disk between two checks.
func (d *fakeDisk) change(how func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	how()
}

func (d *fakeDisk) usage(string) (capacity, available uint64, err error) {
	return 100, uint64(100 - 10*len(d.ids())), nil
}

// start runs the collector in the test's bubble. The returned function waits for the next check to finish.
func start(t *testing.T, config images.CollectorConfig, deps images.CollectorDeps) (nextPeriod func()) {
	t.Helper()
	c, err := images.NewCollector(deps, config)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { _ = c.Start(ctx) })
	t.Cleanup(func() { cancel(); group.Wait() })
	return func() {
		time.Sleep(5 * time.Minute)
		synctest.Wait()
	}
}

// TestCollectorRemovesWhatIsTooOld removes by age alone, on a disk with free space.
func TestCollectorRemovesWhatIsTooOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDisk{containers: []*runtimeapi.Container{{ImageRef: "running"}}}
		for _, id := range []string{"pinned", "running", "left", "never"} {
			d.images = append(d.images, &runtimeapi.Image{Id: id, Size: 10, Pinned: id == "pinned"})
		}
		d.containers = append(d.containers, &runtimeapi.Container{ImageRef: "left"})
		removed := 0
		nextPeriod := start(t, images.CollectorConfig{High: 100, Low: 100, MaxAge: 12 * time.Minute}, images.CollectorDeps{
			Service: d, Usage: d.usage, OnRemoved: func() { removed++ },
		})
		nextPeriod() // "left" is in use
		d.change(func() { d.containers = d.containers[:1] })
		nextPeriod()
		require.Len(t, d.ids(), 4, "ten minutes are not too long")
		nextPeriod()
		require.Equal(t, []string{"pinned", "running", "left"}, d.ids())
		nextPeriod()
		require.Equal(t, 2, removed)
		require.Equal(t, []string{"pinned", "running"}, d.ids())
	})
}

// TestCollectorFreesADiskThatWasFullAtTheStart has the images age from the start on.
func TestCollectorFreesADiskThatWasFullAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDisk{}
		for i := range 9 {
			d.images = append(d.images, &runtimeapi.Image{Id: fmt.Sprint(i), Size: 10})
		}
		events := record.NewFakeRecorder(10)
		nextPeriod := start(t, images.CollectorConfig{High: 85, Low: 60}, images.CollectorDeps{
			Service: d, Usage: d.usage, Recorder: events,
		})
		nextPeriod()
		require.Len(t, d.ids(), 6)
		require.Empty(t, events.Events)
	})
}

func TestCollectorRemovesWhatWasNotUsedForLongest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDisk{containers: []*runtimeapi.Container{{ImageRef: "running"}}}
		for _, id := range []string{"pinned", "running", "wanted", "old", "a", "b", "c", "d"} {
			d.images = append(d.images, &runtimeapi.Image{
				Id: id, Size: 10, Pinned: id == "pinned", RepoTags: []string{"docker.io/library/" + id + ":latest"},
			})
		}
		events := record.NewFakeRecorder(10)
		nextPeriod := start(t, images.CollectorConfig{High: 85, Low: 60}, images.CollectorDeps{
			Service: d, Usage: d.usage, ImagesInUse: func() []string { return []string{"wanted"} }, Recorder: events,
		})
		nextPeriod()
		require.Len(t, d.ids(), 8, "80 percent are not too much")
		d.change(func() {
			d.images = append(d.images, &runtimeapi.Image{Id: "new", Size: 10})
			d.containers = append(d.containers, &runtimeapi.Container{ImageRef: "old"})
		})
		nextPeriod()
		require.Equal(t, []string{"pinned", "running", "wanted", "old", "d", "new"}, d.ids())
		require.Empty(t, events.Events)
	})
}

// TestRemoveUnusedKeepsNewImages is called when the disk is full, also on a node that removes no images by a percentage.
func TestRemoveUnusedKeepsNewImages(t *testing.T) {
	for _, high := range []int{85, 100} {
		synctest.Test(t, func(t *testing.T) {
			d := &fakeDisk{images: []*runtimeapi.Image{{Id: "before", Size: 10}}}
			removed := 0
			c, err := images.NewCollector(images.CollectorDeps{Service: d, Usage: d.usage, OnRemoved: func() { removed++ }},
				images.CollectorConfig{High: high, Low: 60, MinAge: 7 * time.Minute})
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() { _ = c.Start(ctx) }()
			synctest.Wait()
			add := func(id string) { d.change(func() { d.images = append(d.images, &runtimeapi.Image{Id: id, Size: 10}) }) }
			removeAfter := func(wait time.Duration) {
				time.Sleep(wait)
				synctest.Wait()
				require.NoError(t, c.RemoveUnused(ctx))
			}
			add("added")
			removeAfter(6 * time.Minute) // the collector has seen it after five
			require.Equal(t, []string{"before", "added"}, d.ids())
			add("new")
			removeAfter(time.Minute)
			require.Equal(t, []string{"added", "new"}, d.ids())
			removeAfter(5 * time.Minute)
			require.Equal(t, []string{"new"}, d.ids())
			removeAfter(3 * time.Minute)
			require.Empty(t, d.ids())
			require.Equal(t, 3, removed)
		})
	}
}

// TestCollectorRecordsEventsOfFailures uses a disk without size, one whose images are all in use, and one that cannot
// be measured.
func TestCollectorRecordsEventsOfFailures(t *testing.T) {
	for name, c := range map[string]struct {
		capacity, available uint64
		err                 error
		periods             int
		want                string
	}{
		"no size": {0, 0, nil, 1, "Warning InvalidDiskCapacity invalid capacity 0 on image filesystem"},
		"in use":  {100, 1, nil, 1, "Warning FreeDiskSpaceFailed wanted to free 39 bytes, but freed 0"},
		"a single failure is not reported": {0, 0, errors.New("no such device"), 2,
			"Warning ImageGCFailed no such device"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				events := record.NewFakeRecorder(10)
				nextPeriod := start(t, images.CollectorConfig{High: 85, Low: 60}, images.CollectorDeps{
					Service: &fakeDisk{}, Recorder: events, ImagesInUse: func() []string { return nil },
					Usage: func(string) (uint64, uint64, error) { return c.capacity, c.available, c.err },
				})
				for range c.periods {
					require.Empty(t, events.Events)
					nextPeriod()
				}
				require.Len(t, events.Events, 1)
				require.Contains(t, <-events.Events, c.want)
			})
		})
	}
}
