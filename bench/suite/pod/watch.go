package pod

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// state is a state of a Pod.
type state int

const (
	isReady state = iota
	isGone
	states
)

// watcher records when Pods reach their states.
type watcher struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu   sync.Mutex // guards all below
	seen map[string]*[states]milestone
}

// milestone is the time when a state was reached.
type milestone struct {
	at      time.Time // valid once reached is closed
	reached chan struct{}
}

// watchPods watches a namespace, which has no Pods yet.
func watchPods(ctx context.Context, client kubernetes.Interface, namespace string) (*watcher, error) {
	ctx, cancel := context.WithCancel(ctx)
	changes, err := client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("watch Pods: %w", err)
	}
	w := &watcher{cancel: cancel, done: make(chan struct{}), seen: make(map[string]*[states]milestone)}
	go w.run(changes)
	return w, nil
}

func (w *watcher) run(changes watch.Interface) {
	defer close(w.done)
	defer changes.Stop()
	for event := range changes.ResultChan() {
		now := time.Now()
		pod, is := event.Object.(*corev1.Pod)
		switch {
		case !is:
		case event.Type == watch.Deleted:
			w.reach(pod.Name, isGone, now)
		case ready(pod):
			w.reach(pod.Name, isReady, now)
		}
	}
}

func ready(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// milestones returns those of a Pod. The caller holds mu.
func (w *watcher) milestones(name string) *[states]milestone {
	marks, known := w.seen[name]
	if !known {
		marks = new([states]milestone)
		for i := range marks {
			marks[i].reached = make(chan struct{})
		}
		w.seen[name] = marks
	}
	return marks
}

func (w *watcher) reach(name string, what state, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := &w.milestones(name)[what]
	if m.at.IsZero() {
		m.at = at
		close(m.reached)
	}
}

// until waits until the Pod has reached the state and returns the time of that.
func (w *watcher) until(ctx context.Context, name string, what state) (time.Time, error) {
	w.mu.Lock()
	m := &w.milestones(name)[what]
	w.mu.Unlock()
	select {
	case <-m.reached:
		return m.at, nil
	case <-w.done:
		return time.Time{}, errors.New("the watch of Pods ended")
	case <-ctx.Done():
		return time.Time{}, fmt.Errorf("Pod %q is not %s yet: %w", name, [...]string{"ready", "gone"}[what], ctx.Err())
	}
}

func (w *watcher) stop() error {
	w.cancel()
	<-w.done
	return nil
}
