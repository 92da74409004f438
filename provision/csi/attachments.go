package csi

import (
	"context"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// WakeDeletions implements provision.DeletionWaker: a volume that was still attached may be deleted when one of its
// VolumeAttachments is gone.
func (p *Provisioner) WakeDeletions(ctx context.Context, wake func(volume string)) error {
	api := p.client.StorageV1().VolumeAttachments()
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return api.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return api.Watch(ctx, o)
		},
	}
	detached := &detachments{driver: p.config.Name, wake: wake, volumes: map[string]string{}}
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(source, p.client),
		&storagev1.VolumeAttachment{}, detached, cache.ReflectorOptions{}).RunWithContext(ctx)
	return nil
}

// detachments hears of all VolumeAttachments and remembers only the names of its driver's: a cluster may have very many,
// and only their end matters. The reflector, its one caller, calls it from one goroutine.
type detachments struct {
	driver string
	wake   func(volume string)
	// volumes has the volume of each VolumeAttachment, by the names of both.
	volumes map[string]string
}

var _ cache.ReflectorStore = (*detachments)(nil)

// Add implements cache.ReflectorStore.
func (d *detachments) Add(obj any) error {
	if a, ok := obj.(*storagev1.VolumeAttachment); ok && a.Spec.Attacher == d.driver &&
		a.Spec.Source.PersistentVolumeName != nil {
		d.volumes[a.Name] = *a.Spec.Source.PersistentVolumeName
	}
	return nil
}

// Update implements cache.ReflectorStore. What a VolumeAttachment is for cannot change.
func (d *detachments) Update(obj any) error { return d.Add(obj) }

// Delete implements cache.ReflectorStore.
func (d *detachments) Delete(obj any) error {
	if a, ok := obj.(*storagev1.VolumeAttachment); ok {
		d.gone(a.Name)
	}
	return nil
}

func (d *detachments) gone(name string) {
	if volume, ok := d.volumes[name]; ok {
		delete(d.volumes, name)
		d.wake(volume)
	}
}

// Replace implements cache.ReflectorStore: after a gap in the watch, what is not listed any more is gone.
func (d *detachments) Replace(list []any, _ string) error {
	there := make(map[string]bool, len(list))
	for _, obj := range list {
		if a, ok := obj.(*storagev1.VolumeAttachment); ok {
			there[a.Name] = true
		}
	}
	for name := range d.volumes {
		if !there[name] {
			d.gone(name)
		}
	}
	for _, obj := range list {
		if err := d.Add(obj); err != nil {
			return err
		}
	}
	return nil
}

// Resync implements cache.ReflectorStore; nothing is ever repeated.
func (d *detachments) Resync() error { return nil }
