package capacity

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/controller"
)

// watch enqueues the keys of the objects that depend on what changed.
func (p *Publisher) watch(objects cache.SharedInformer) {
	core, storage := p.factory.Core().V1(), p.factory.Storage().V1()
	p.runner.Watch(controller.Watches(storage.StorageClasses().Informer(), func(class *storagev1.StorageClass) []key {
		return p.keysOfClass(class, p.topologies.keys())
	}, controller.Changed()))
	p.runner.Watch(controller.Watches(storage.CSIDrivers().Informer(), func(driver *storagev1.CSIDriver) []key {
		if driver.Name != p.config.DriverName {
			return nil
		}
		return p.keysOfTopologies(p.topologies.keys()) // it is the owner of the objects
	}, controller.Changed()))
	p.runner.Watch(controller.Watches(storage.CSINodes().Informer(), func(node *storagev1.CSINode) []key {
		return p.keysOfTopologies(p.topologies.refresh(node.Name))
	}, controller.Changed()))
	p.runner.Watch(controller.Watches(core.Nodes().Informer(), func(node *corev1.Node) []key {
		return p.keysOfTopologies(p.topologies.refresh(node.Name))
	}, controller.MetadataChanged()))
	p.runner.Watch(controller.Watches(core.PersistentVolumes().Informer(), func(pv *corev1.PersistentVolume) []key {
		if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != p.config.DriverName {
			return nil
		}
		return p.keysOfTopologies(p.topologies.ofVolume(pv))
	}, capacityChanged))
	p.runner.Watch(controller.Watches(objects, func(object *storagev1.CSIStorageCapacity) []key {
		return []key{keyOf(object)}
	}, controller.Changed()))
	p.runner.Watch(controller.Poll(
		controller.PollConfig{Name: "capacity that changes without an event", Period: p.config.Period, Clock: p.deps.Clock},
		func(context.Context) ([]key, error) { return p.keysOfTopologies(p.topologies.keys()), nil }))
}

// capacityChanged drops events of volumes that do not change the capacity: most changes are of a volume's status.
func capacityChanged(e controller.Event) bool {
	before, ok := e.Old.(*corev1.PersistentVolume)
	if !ok {
		return !e.Initial
	}
	after, ok := e.Object.(*corev1.PersistentVolume)
	return ok && !before.Spec.Capacity.Storage().Equal(*after.Spec.Capacity.Storage())
}

func (p *Publisher) keysOfClass(class *storagev1.StorageClass, texts []string) []key {
	if class.Provisioner != p.config.DriverName {
		return nil
	}
	keys := make([]key, 0, len(texts))
	for _, text := range texts {
		keys = append(keys, key{class: class.Name, topology: text})
	}
	return keys
}

func (p *Publisher) keysOfTopologies(texts []string) []key {
	if len(texts) == 0 {
		return nil
	}
	classes, err := p.classes.List(labels.Everything())
	if err != nil {
		return nil // a lister over a cache has no error
	}
	var keys []key
	for _, class := range classes {
		keys = append(keys, p.keysOfClass(class, texts)...)
	}
	return keys
}
