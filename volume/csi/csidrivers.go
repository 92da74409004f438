package csi

import (
	"context"
	"fmt"
	"slices"
	"sync"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/listwatch"
)

// csiDriverStore stores the cluster's CSIDriver objects.
type csiDriverStore struct {
	cache.Store
	client     kubernetes.Interface
	onChange   func() // called after each change, but not for the first list
	markSynced func() // closes synced, once
	synced     chan struct{}
}

var _ cache.ReflectorStore = (*csiDriverStore)(nil)

func newCSIDriverStore(client kubernetes.Interface, changed func()) *csiDriverStore {
	o := &csiDriverStore{
		Store: cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc), client: client, onChange: changed,
		synced: make(chan struct{}),
	}
	o.markSynced = sync.OnceFunc(func() { close(o.synced) })
	return o
}

// Replace implements cache.ReflectorStore.
func (o *csiDriverStore) Replace(list []any, version string) error {
	if err := o.Store.Replace(list, version); err != nil {
		return err
	}
	select {
	case <-o.synced:
		o.onChange()
	default:
		o.markSynced() // wakes the callers of get
	}
	return nil
}

// Add implements cache.ReflectorStore.
func (o *csiDriverStore) Add(object any) error {
	defer o.onChange()
	return o.Store.Add(object)
}

// Update implements cache.ReflectorStore.
func (o *csiDriverStore) Update(object any) error {
	defer o.onChange()
	return o.Store.Update(object)
}

// start watches the objects until ctx ends.
func (o *csiDriverStore) start(ctx context.Context) error {
	drivers := listwatch.New(o.client.StorageV1().CSIDrivers(), o.client)
	cache.NewReflectorWithOptions(drivers, &storagev1.CSIDriver{}, o,
		cache.ReflectorOptions{Name: "csi drivers"}).RunWithContext(ctx)
	return nil
}

// get returns the object of a driver, nil if there is none. It blocks until the objects have been listed.
func (o *csiDriverStore) get(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	select {
	case <-o.synced:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the list of CSIDriver objects: %w", ctx.Err())
	}
	object, ok, err := o.GetByKey(name)
	if err != nil || !ok {
		return nil, err
	}
	driver, ok := object.(*storagev1.CSIDriver)
	if !ok {
		return nil, fmt.Errorf("read CSIDriver %q: it is a %T", name, object)
	}
	return driver, nil
}

// attachRequired reports whether volumes of the driver have to be attached, which is the default.
func attachRequired(object *storagev1.CSIDriver) bool {
	return object == nil || object.Spec.AttachRequired == nil || *object.Spec.AttachRequired
}

func requiresRepublish(object *storagev1.CSIDriver) bool {
	return object != nil && object.Spec.RequiresRepublish != nil && *object.Spec.RequiresRepublish
}

func podInfoOnMount(object *storagev1.CSIDriver) bool {
	return object != nil && object.Spec.PodInfoOnMount != nil && *object.Spec.PodInfoOnMount
}

func tokensInSecrets(object *storagev1.CSIDriver) bool {
	return object != nil && object.Spec.ServiceAccountTokenInSecrets != nil && *object.Spec.ServiceAccountTokenInSecrets
}

// checkLifecycleMode rejects a volume of a lifecycle mode that the driver does not declare.
func checkLifecycleMode(object *storagev1.CSIDriver, s *source) error {
	mode := storagev1.VolumeLifecyclePersistent
	if s.ephemeral {
		mode = storagev1.VolumeLifecycleEphemeral
	}
	modes := []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	if object != nil && len(object.Spec.VolumeLifecycleModes) > 0 {
		modes = object.Spec.VolumeLifecycleModes
	}
	if slices.Contains(modes, mode) {
		return nil
	}
	if object == nil {
		return fmt.Errorf("volume mode %q not supported by driver %s (no CSIDriver object)", mode, s.driver)
	}
	return fmt.Errorf("volume mode %q not supported by driver %s (only supports %q)", mode, s.driver, modes)
}

// fsGroupPolicy returns the driver's policy about the Pod's fsGroup.
func fsGroupPolicy(object *storagev1.CSIDriver) storagev1.FSGroupPolicy {
	if object == nil || object.Spec.FSGroupPolicy == nil || *object.Spec.FSGroupPolicy == "" {
		return storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	}
	return *object.Spec.FSGroupPolicy
}
