package modify

import (
	"context"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/reconcile"
)

// waitForClass retries the claim when the class is created. The caller reads the class after it, so that it misses none.
func (m *Modifier) waitForClass(key reconcile.Request, class string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting[key] = class
}

// stopWaiting ends the claim's wait for a class.
func (m *Modifier) stopWaiting(key reconcile.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.waiting, key)
}

// watchClasses retries claims as soon as the classes that they wait for are created. It watches nothing before the first such
// claim.
func (m *Modifier) watchClasses(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-m.classWanted:
	}
	factory := informers.NewSharedInformerFactory(m.Deps.Client, 0)
	informer := factory.Storage().V1().VolumeAttributesClasses().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
		if class, ok := obj.(*storagev1.VolumeAttributesClass); ok {
			m.classCreated(class.Name)
		}
	}})
	if err != nil {
		m.Deps.Logger.Warn("cannot watch VolumeAttributesClasses; claims that wait for one are retried after their delay", "error", err)
		return
	}
	factory.StartWithContext(ctx)
	<-ctx.Done()
	factory.Shutdown()
}

func (m *Modifier) classCreated(class string) {
	m.mu.Lock()
	var keys []reconcile.Request
	for key, name := range m.waiting {
		if name == class {
			keys = append(keys, key)
			delete(m.waiting, key)
		}
	}
	m.mu.Unlock()
	m.Retry(keys...)
}
