package testwatch

import (
	"sync"

	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/internal/contain"
)

// Copies returns a reaction to watches that watches as a fake clientset with the tracker does, but hands out copies.
func Copies(tracker clienttesting.ObjectTracker) clienttesting.WatchReactionFunc {
	return CopiesAfter(tracker, func(watch.Event) {})
}

// CopiesAfter is Copies with a function that is called before each event is handed out, and that may wait. It has to return when the
// watch is stopped.
func CopiesAfter(tracker clienttesting.ObjectTracker, wait func(watch.Event)) clienttesting.WatchReactionFunc {
	return func(action clienttesting.Action) (bool, watch.Interface, error) {
		watcher, err := tracker.Watch(action.GetResource(), action.GetNamespace(), action.(clienttesting.WatchActionImpl).ListOptions)
		if err != nil {
			return true, nil, err
		}
		c := &copies{Interface: watcher, wait: wait, out: make(chan watch.Event), done: make(chan struct{})}
		go contain.Guard("testwatch.Copies", action.GetResource().Resource, c.run)()
		return true, c, nil
	}
}

// copies is a watch with objects of the watcher's own.
type copies struct {
	watch.Interface
	wait func(watch.Event)
	out  chan watch.Event
	once sync.Once
	done chan struct{} // closed by Stop
}

// ResultChan implements watch.Interface.
func (c *copies) ResultChan() <-chan watch.Event { return c.out }

// Stop implements watch.Interface.
func (c *copies) Stop() {
	c.once.Do(func() { close(c.done) })
	c.Interface.Stop()
}

func (c *copies) run() {
	defer close(c.out)
	for event := range c.Interface.ResultChan() {
		event.Object = event.Object.DeepCopyObject()
		c.wait(event)
		select {
		case c.out <- event:
		case <-c.done:
			return
		}
	}
}
