package kubelet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/status"
	kubelettypes "github.com/berth-dev/berth/kubelet/types"
)

// runOnceTimeout is how long a Pod of RunOnce may take to run: ten tries, of which the first has a second and each other one
// twice as long as the one before.
const runOnceTimeout = (1<<10 - 1) * time.Second

// RunOnce takes one update, which has to be of the kind SET, and runs its Pods. It returns when each of them runs, has
// ended, or has timed out; the containers run on.
func (k *Kubelet) RunOnce(updates <-chan kubelettypes.PodUpdate) ([]RunPodResult, error) {
	var update kubelettypes.PodUpdate
	select {
	case <-k.ctx.Done():
		return nil, k.ctx.Err()
	case got, open := <-updates:
		if !open {
			return nil, errors.New("run Pods once: the source ended without an update")
		}
		update = got
	}
	if update.Op != kubelettypes.SET {
		return nil, fmt.Errorf("run Pods once: the first update is of kind %d, want SET", update.Op)
	}
	ctx, cancel := context.WithCancel(k.ctx)
	defer cancel()
	waiter := newRunOnceWaiter(update.Pods)
	defer k.agent.Subscribe(waiter.onPodEvent)()
	ended := make(chan error, 1)
	go func() { ended <- contain.Do("kubelet.RunOnce", "", func() error { return k.start(ctx) }) }()
	newUpdateAdapter(k).apply(update)
	timer := k.deps.Clock.NewTimer(runOnceTimeout)
	defer timer.Stop()
	var err error
	select {
	case <-waiter.done:
	case <-timer.C():
	case err = <-ended:
		ended <- nil
		err = errors.Join(errors.New("run Pods once: the kubelet ended"), err)
	}
	cancel()
	return waiter.results(update.Pods), errors.Join(err, <-ended)
}

// runOnceWaiter waits until each of some Pods runs, or has ended.
type runOnceWaiter struct {
	done chan struct{} // closed when open is empty

	mu   sync.Mutex // guards below
	last map[types.UID]corev1.PodStatus
	open map[types.UID]*corev1.Pod
}

func newRunOnceWaiter(pods []*corev1.Pod) *runOnceWaiter {
	w := &runOnceWaiter{
		done: make(chan struct{}), last: map[types.UID]corev1.PodStatus{}, open: map[types.UID]*corev1.Pod{},
	}
	for _, pod := range pods {
		w.open[pod.UID] = pod
	}
	if len(w.open) == 0 {
		close(w.done)
	}
	return w
}

func (w *runOnceWaiter) onPodEvent(event status.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	pod := w.open[event.UID]
	if pod == nil || event.Removed {
		return
	}
	w.last[event.UID] = event.Status
	if podutil.IsTerminal(&event.Status) || allRunning(pod, &event.Status) {
		delete(w.open, event.UID)
		if len(w.open) == 0 {
			close(w.done)
		}
	}
}

func (w *runOnceWaiter) results(pods []*corev1.Pod) []RunPodResult {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]RunPodResult, 0, len(pods))
	for _, pod := range pods {
		s, known := w.last[pod.UID]
		result := RunPodResult{Pod: pod}
		switch {
		case s.Phase == corev1.PodFailed:
			result.Err = fmt.Errorf("Pod %s/%s failed: %s: %s", pod.Namespace, pod.Name, s.Reason, s.Message)
		case w.open[pod.UID] != nil && !known:
			result.Err = fmt.Errorf("Pod %s/%s was not started", pod.Namespace, pod.Name)
		case w.open[pod.UID] != nil:
			result.Err = fmt.Errorf("Pod %s/%s does not run: phase %s, %s", pod.Namespace, pod.Name, s.Phase, waitingContainer(&s))
		}
		out = append(out, result)
	}
	return out
}

// waitingContainer describes what a container waits for.
func waitingContainer(s *corev1.PodStatus) string {
	for c := range podutil.Statuses(s) {
		if waiting := c.State.Waiting; waiting != nil {
			return fmt.Sprintf("container %s is waiting: %s: %s", c.Name, waiting.Reason, waiting.Message)
		}
	}
	return "no container is waiting"
}

func allRunning(pod *corev1.Pod, s *corev1.PodStatus) bool {
	for i := range s.ContainerStatuses {
		if s.ContainerStatuses[i].State.Running == nil {
			return false
		}
	}
	return len(s.ContainerStatuses) >= len(pod.Spec.Containers)
}
