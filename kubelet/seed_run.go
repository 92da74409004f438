package kubelet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/config"
	kubelettypes "github.com/berth-dev/berth/kubelet/types"
)

// runOnceBudget is how long a Pod of RunOnce may take to run: ten tries, of which the first is given a second and each
// other one twice as long as the one before.
const runOnceBudget = (1<<10 - 1) * time.Second

var _ KubeletBootstrap = (*Kubelet)(nil)

// Run makes the node's Pods run until the channel is closed, and returns when all has ended but the containers. Pods
// that come through the channel are run beside those of the other sources; with KubeletDeps.PodConfig there are no
// others. It is called once. A failure is logged, since it has nowhere to go: Start returns it.
func (k *Kubelet) Run(updates <-chan kubelettypes.PodUpdate) {
	defer k.face.life.end()
	ctx, cancel := context.WithCancel(k.face.life)
	defer cancel()
	defer k.settleIn()()
	ended := make(chan error, 1)
	go func() { ended <- k.Start(ctx) }()
	feed := newFeed(k)
	for {
		select {
		case err := <-ended:
			if err != nil {
				k.deps.Logger.Error("the node agent has ended", "error", err)
			}
			return
		case update, open := <-updates:
			if open {
				feed.take(update)
				continue
			}
			cancel()
			updates = nil
		}
	}
}

// RunOnce takes one update, which has to be of the kind SET, and runs its Pods. It returns when each of them runs, has
// ended, or has used up its time; the containers run on.
func (k *Kubelet) RunOnce(updates <-chan kubelettypes.PodUpdate) ([]RunPodResult, error) {
	var update kubelettypes.PodUpdate
	select {
	case <-k.face.life.Done():
		return nil, k.face.life.Err()
	case got, open := <-updates:
		if !open {
			return nil, errors.New("run pods once: the source ended without an update")
		}
		update = got
	}
	if update.Op != kubelettypes.SET {
		return nil, fmt.Errorf("run pods once: the first update is of kind %d, want SET", update.Op)
	}
	ctx, cancel := context.WithCancel(k.face.life)
	defer cancel()
	defer k.settleIn()()
	watch := newOnce(update.Pods)
	defer k.Subscribe(watch.report)()
	ended := make(chan error, 1)
	go func() { ended <- k.Start(ctx) }()
	newFeed(k).take(update)
	timer := k.deps.Clock.NewTimer(runOnceBudget)
	defer timer.Stop()
	var err error
	select {
	case <-watch.done:
	case <-timer.C():
	case err = <-ended:
		ended <- nil
		err = errors.Join(errors.New("run pods once: the node agent ended"), err)
	}
	cancel()
	return watch.results(update.Pods), errors.Join(err, <-ended)
}

// once waits until each of some Pods runs, or has ended.
type once struct {
	done chan struct{} // closed when open is empty

	mu   sync.Mutex // guards below
	last map[types.UID]corev1.PodStatus
	open map[types.UID]*corev1.Pod
}

func newOnce(pods []*corev1.Pod) *once {
	o := &once{
		done: make(chan struct{}), last: map[types.UID]corev1.PodStatus{}, open: map[types.UID]*corev1.Pod{},
	}
	for _, pod := range pods {
		o.open[pod.UID] = pod
	}
	if len(o.open) == 0 {
		close(o.done)
	}
	return o
}

func (o *once) report(r Report) {
	o.mu.Lock()
	defer o.mu.Unlock()
	pod := o.open[r.UID]
	if pod == nil || r.Gone {
		return
	}
	o.last[r.UID] = r.Status
	if podutil.IsTerminal(&r.Status) || allRun(pod, &r.Status) {
		delete(o.open, r.UID)
		if len(o.open) == 0 {
			close(o.done)
		}
	}
}

func (o *once) results(pods []*corev1.Pod) []RunPodResult {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make([]RunPodResult, 0, len(pods))
	for _, pod := range pods {
		s, known := o.last[pod.UID]
		result := RunPodResult{Pod: pod}
		switch {
		case s.Phase == corev1.PodFailed:
			result.Err = fmt.Errorf("pod %s/%s failed: %s: %s", pod.Namespace, pod.Name, s.Reason, s.Message)
		case o.open[pod.UID] != nil && !known:
			result.Err = fmt.Errorf("pod %s/%s was not started", pod.Namespace, pod.Name)
		case o.open[pod.UID] != nil:
			result.Err = fmt.Errorf("pod %s/%s does not run: phase %s, %s", pod.Namespace, pod.Name, s.Phase, waits(&s))
		}
		out = append(out, result)
	}
	return out
}

// waits tells what containers wait for.
func waits(s *corev1.PodStatus) string {
	for _, list := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
		for i := range list {
			if w := list[i].State.Waiting; w != nil {
				return fmt.Sprintf("container %s waits: %s: %s", list[i].Name, w.Reason, w.Message)
			}
		}
	}
	return "no container waits"
}

func allRun(pod *corev1.Pod, s *corev1.PodStatus) bool {
	for i := range s.ContainerStatuses {
		if s.ContainerStatuses[i].State.Running == nil {
			return false
		}
	}
	return len(s.ContainerStatuses) >= len(pod.Spec.Containers)
}

// feed takes updates of a channel into the node agent. It belongs to one goroutine.
type feed struct {
	k *Kubelet
	// known are the Pods of each source.
	known map[string]map[types.UID]*corev1.Pod
}

func newFeed(k *Kubelet) *feed { return &feed{k: k, known: map[string]map[types.UID]*corev1.Pod{}} }

func (f *feed) take(update kubelettypes.PodUpdate) {
	pods := make([]*corev1.Pod, 0, len(update.Pods))
	for _, pod := range update.Pods {
		pods = append(pods, f.sourced(pod, update.Source))
	}
	known := f.known[update.Source]
	if known == nil {
		known = map[types.UID]*corev1.Pod{}
		f.known[update.Source] = known
	}
	switch update.Op {
	case kubelettypes.SET:
		f.set(known, pods)
	case kubelettypes.REMOVE:
		f.k.HandlePodRemoves(pods)
		for _, pod := range pods {
			delete(known, pod.UID)
		}
	case kubelettypes.RECONCILE:
		f.k.HandlePodReconcile(pods)
	case kubelettypes.ADD:
		f.k.HandlePodAdditions(pods)
	default:
		f.k.HandlePodUpdates(pods)
	}
	if update.Op != kubelettypes.REMOVE {
		for _, pod := range pods {
			known[pod.UID] = pod
		}
	}
	f.ready(update.Source)
}

// set makes the source's Pods those given.
func (f *feed) set(known map[types.UID]*corev1.Pod, pods []*corev1.Pod) {
	var added, changed []*corev1.Pod
	next := map[types.UID]bool{}
	for _, pod := range pods {
		next[pod.UID] = true
		if known[pod.UID] == nil {
			added = append(added, pod)
		} else {
			changed = append(changed, pod)
		}
	}
	for uid, pod := range maps.Clone(known) {
		if next[uid] {
			continue
		}
		// As at the API server: first it is asked to end, with its grace, and then it is no more.
		ending := *pod
		now := metav1.NewTime(f.k.deps.Clock.Now())
		ending.DeletionTimestamp, ending.DeletionGracePeriodSeconds = &now, pod.Spec.TerminationGracePeriodSeconds
		f.k.HandlePodUpdates([]*corev1.Pod{&ending})
		f.k.HandlePodRemoves([]*corev1.Pod{&ending})
		delete(known, uid)
	}
	f.k.HandlePodAdditions(added)
	f.k.HandlePodUpdates(changed)
}

// ready lets what nobody wants be ended as soon as all sources have spoken. Without a PodConfig it is not known how
// many there are, and nothing is ended.
func (f *feed) ready(source string) {
	if in := f.k.face.injected; in != nil && in.PodConfig != nil && in.PodConfig.MarkSeen(source) {
		f.k.SourcesReady()
	}
}

// sourced notes in a copy of the Pod where it came from.
func (f *feed) sourced(pod *corev1.Pod, source string) *corev1.Pod {
	if source == "" {
		source = kubelettypes.FileSource
	}
	out := *pod
	out.Annotations = maps.Clone(pod.Annotations)
	if out.Annotations == nil {
		out.Annotations = map[string]string{}
	}
	out.Annotations[config.SourceAnnotation] = source
	if out.Annotations[config.SeenAnnotation] == "" {
		out.Annotations[config.SeenAnnotation] = f.k.deps.Clock.Now().Format(time.RFC3339Nano)
	}
	return &out
}
