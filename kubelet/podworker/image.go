package podworker

import (
	"context"
	"errors"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/images"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/status"
	"github.com/berth-dev/berth/timeline"
)

// pullImages starts to pull images: those of the containers to be started, and those of the containers after them.
func (w *worker) pullImages(ctx context.Context, actions kuberuntime.Actions) {
	for _, s := range actions.Start {
		w.pullForContainer(ctx, s.Container)
	}
	for i := range w.pod.Spec.Containers {
		c := &w.pod.Spec.Containers[i]
		if w.runtime.Find(c.Name) == nil {
			w.pullForContainer(ctx, c)
		}
	}
}

// pullForContainer starts to pull a container's image and those of the image volumes that it mounts.
func (w *worker) pullForContainer(ctx context.Context, c *corev1.Container) {
	if w.ops[opContainer+c.Name] != nil {
		return
	}
	w.pullImage(ctx, c.Name, c.Name, c.Image, c.ImagePullPolicy)
	for _, v := range w.imageVolumes(c) {
		w.pullImage(ctx, c.Name, imageVolumeKey(c, v.Name), v.Image.Reference, v.Image.PullPolicy)
	}
}

// imageVolumes returns the Pod's image volumes that the container mounts.
func (w *worker) imageVolumes(c *corev1.Container) []*corev1.Volume {
	var found []*corev1.Volume
	for _, m := range c.VolumeMounts {
		for i := range w.pod.Spec.Volumes {
			if v := &w.pod.Spec.Volumes[i]; v.Name == m.Name && v.Image != nil && v.Image.Reference != "" {
				found = append(found, v)
			}
		}
	}
	return found
}

// imageVolumeKey is the key of the image of a container's volume. No container has such a name.
func imageVolumeKey(c *corev1.Container, volume string) string { return c.Name + "/" + volume }

// pulledImages returns the container's image and those of its image volumes by the volume's name, if all are present.
func (w *worker) pulledImages(c *corev1.Container) (image *runtimeapi.Image, volumes map[string]*runtimeapi.Image) {
	volumes = map[string]*runtimeapi.Image{}
	for _, v := range w.imageVolumes(c) {
		got := w.pulled(imageVolumeKey(c, v.Name), v.Image.Reference)
		if got == nil {
			return nil, nil
		}
		volumes[v.Name] = got
	}
	return w.pulled(c.Name, c.Image), volumes
}

// pulledImage is an image that is present, with the name that it was pulled by.
type pulledImage struct {
	name  string
	image *runtimeapi.Image
}

// pulled returns the image under the key, nil if it is not present, or was pulled before the spec had this name for it.
func (w *worker) pulled(key, name string) *runtimeapi.Image {
	if got := w.images[key]; got.name == name {
		return got.image
	}
	return nil
}

// forgetImages makes the next instance ensure its images again, as its pull policy may demand.
func (w *worker) forgetImages(c *corev1.Container) {
	delete(w.images, c.Name)
	for _, v := range w.imageVolumes(c) {
		delete(w.images, imageVolumeKey(c, v.Name))
	}
}

// pullImage starts to ensure that one image is present, for the named container, and stores it under the key.
func (w *worker) pullImage(ctx context.Context, name, key, image string, policy corev1.PullPolicy) {
	step := opImage + key
	if w.pulled(key, image) != nil || w.ops[step] != nil || w.backingOff(step) {
		return
	}
	if w.pulls.from.IsZero() {
		w.pulls.from = w.m.deps.Clock.Now()
	}
	want := images.PullRequest{Pod: w.pod, Ref: fieldRef(w.pod, name), Image: image, Policy: policy, Slow: func() {
		w.post(func() { w.ops[step].brief = false }) // it arrives before the end of the operation
	}}
	w.startOp(ctx, step, op{brief: true}, func(ctx context.Context) func() {
		span := w.m.deps.Timeline.Begin(timeline.PodRef(want.Pod), owner, timeline.StageImage, key)
		present, err := w.m.deps.Images.Ensure(span.Context(ctx), want)
		span.End(withImageReason(err))
		return func() {
			w.pulls.to = w.m.deps.Clock.Now()
			if err == nil {
				w.retries.done(step)
				w.images[key] = pulledImage{image, present}
				w.clearImageFailure(name)
				return
			}
			var refused *images.Error
			if errors.As(err, &refused) {
				w.waiting[name] = status.Waiting{Reason: refused.Reason, Message: refused.Message}
				w.retries[step] = retry{until: refused.RetryAt}
				w.wakeAt(refused.RetryAt)
				return
			}
			w.failStep(ctx, step, err)
		}
	})
}

// looksUpImage reports whether the container's image or one of its image volumes is looked up, which takes a moment.
func (w *worker) looksUpImage(c *corev1.Container) bool {
	brief := func(key string) bool { o := w.ops[opImage+key]; return o != nil && o.brief }
	return brief(c.Name) || slices.ContainsFunc(w.imageVolumes(c), func(v *corev1.Volume) bool { return brief(imageVolumeKey(c, v.Name)) })
}

// withImageReason adds the reason and remedy of an image's error for the timeline.
func withImageReason(err error) error {
	var refused *images.Error
	if errors.As(err, &refused) {
		return timeline.WithReason(err, refused.Reason, refused.Remedy)
	}
	return err
}

// clearImageFailure clears the container's waiting reason if it was its image.
func (w *worker) clearImageFailure(name string) {
	switch reason := w.waiting[name].Reason; {
	case strings.Contains(reason, "Image"), reason == images.ReasonUnavailable, reason == images.ReasonBadSignature:
		delete(w.waiting, name)
	}
}
