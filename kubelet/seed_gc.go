package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/node"
)

// The share of the images' file system, in percent, above which images are removed, and down to which.
const (
	defaultImageGCHigh = 85
	defaultImageGCLow  = 80
)

// StartGarbageCollection looks through containers and images now and then, until the Kubelet ends, and removes those
// that nobody wants or uses. It returns at once.
func (k *Kubelet) StartGarbageCollection() {
	go k.every(ContainerGCPeriod, "ContainerGCFailed", 1, k.collectContainers)
	go k.every(ImageGCPeriod, "ImageGCFailed", 2, k.collectImages)
}

// every runs collect once a period. An event tells of failures, once there were so many in a row.
func (k *Kubelet) every(period time.Duration, reason string, patience int, collect func(context.Context) error) {
	ticker := k.deps.Clock.NewTicker(period)
	defer ticker.Stop()
	failures := 0
	for {
		select {
		case <-k.face.life.Done():
			return
		case <-ticker.C():
		}
		err := collect(k.face.life)
		if err == nil {
			failures = 0
			continue
		}
		k.deps.Logger.Warn("garbage collection failed", "reason", reason, "error", err)
		if failures++; failures >= patience {
			k.deps.Recorder.Event(node.Reference(k.cfg.NodeName), corev1.EventTypeWarning, reason, err.Error())
		}
	}
}

// collectContainers ends what the runtime holds of Pods that nobody wants, and of each wanted Pod removes the ended
// instances of a container before the last one.
func (k *Kubelet) collectContainers(ctx context.Context) error {
	boxes, err := k.runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	var uids []types.UID
	for _, box := range boxes.Items {
		uids = append(uids, types.UID(box.GetMetadata().GetUid()))
	}
	k.workers.RuntimePods(uids) // which does nothing before all sources have spoken
	list, err := k.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	var errs []error
	for _, id := range superfluous(list.Containers, k.workers.Has) {
		if _, err := k.runtime.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
			errs = append(errs, fmt.Errorf("remove container %q: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// superfluous are the ended instances, of Pods that are ours, after which there are two newer ones: the last one's exit
// is part of the Pod's status.
func superfluous(all []*runtimeapi.Container, ours func(types.UID) bool) []string {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b *runtimeapi.Container) int { return cmp.Compare(b.CreatedAt, a.CreatedAt) })
	newer := map[string]int{}
	var ids []string
	for _, c := range all {
		uid := c.Labels[container.PodUIDLabel]
		if !ours(types.UID(uid)) {
			continue
		}
		key := uid + "/" + c.GetMetadata().GetName()
		if newer[key]++; newer[key] > 2 && c.State == runtimeapi.ContainerState_CONTAINER_EXITED {
			ids = append(ids, c.Id)
		}
	}
	return ids
}

// collectImages removes images that no container uses while their file system is fuller than it may be, those first
// that are largest.
func (k *Kubelet) collectImages(ctx context.Context) error {
	high, low := k.imageThresholds()
	fs, err := k.imagesFs(ctx)
	if err != nil {
		return fmt.Errorf("measure file system of images: %w", err)
	}
	if fs.Capacity == 0 || fs.Usage*100 < fs.Capacity*uint64(high) {
		return nil
	}
	excess := int64(fs.Usage) - int64(fs.Capacity)*int64(low)/100
	images, err := k.runtime.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	used, err := k.usedImages(ctx)
	if err != nil {
		return err
	}
	slices.SortFunc(images.Images, func(a, b *runtimeapi.Image) int { return cmp.Compare(b.Size, a.Size) })
	for _, image := range images.Images {
		if excess <= 0 {
			return nil
		}
		if used[image.Id] || image.Pinned {
			continue
		}
		spec := &runtimeapi.ImageSpec{Image: image.Id}
		if _, err := k.runtime.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: spec}); err != nil {
			return fmt.Errorf("remove image %q: %w", image.Id, err)
		}
		excess -= int64(image.Size)
	}
	if excess > 0 {
		return fmt.Errorf("the images' file system is %d%% full, and %d more bytes should be freed than images that nobody "+
			"uses take", fs.Usage*100/fs.Capacity, excess)
	}
	return nil
}

func (k *Kubelet) imageThresholds() (high, low int32) {
	high, low = defaultImageGCHigh, defaultImageGCLow
	if v := k.face.configuration.ImageGCHighThresholdPercent; v != nil {
		high = *v
	}
	if v := k.face.configuration.ImageGCLowThresholdPercent; v != nil {
		low = *v
	}
	return high, low
}

// usedImages are the ids of images that containers were made from, those that have ended among them.
func (k *Kubelet) usedImages(ctx context.Context) (map[string]bool, error) {
	list, err := k.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	used := map[string]bool{}
	for _, c := range list.Containers {
		used[c.ImageId], used[c.ImageRef] = true, true
	}
	return used, nil
}
