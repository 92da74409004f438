package config

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// StaticDeps are what a Static needs from others.
type StaticDeps struct {
	// Handle gets the changes, one at a time and in order. It must not block, and must not call the Static.
	Handle func(Change)
	// OnConflict, if set, is called for each Pod with the name of another Pod of its source. The rules of Handle apply.
	OnConflict func(pod *corev1.Pod, message string)
	// Logger and Clock may be nil.
	Logger *slog.Logger
	Clock  clock.PassiveClock
}

// Static turns the sets of Pods of the static sources into changes, such that the node has at most one Pod of a name:
// the next one is added when nothing of the one before it is left. It is safe for concurrent use.
type Static struct {
	deps StaticDeps

	mu         sync.Mutex // guards all below, and orders the calls of Handle
	wanted     map[string]map[types.UID]*corev1.Pod
	owners     map[types.NamespacedName]types.UID // the Pod on the node that has the name, also while it terminates
	ownerNames map[types.UID]types.NamespacedName // of owners
	waiting    map[types.NamespacedName][]*corev1.Pod
}

// NewStatic returns a Static without Pods.
func NewStatic(deps StaticDeps) (*Static, error) {
	if deps.Handle == nil {
		return nil, errors.New("config: StaticDeps.Handle is required")
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	return &Static{
		deps: deps, wanted: map[string]map[types.UID]*corev1.Pod{},
		owners: map[types.NamespacedName]types.UID{}, ownerNames: map[types.UID]types.NamespacedName{},
		waiting: map[types.NamespacedName][]*corev1.Pod{},
	}, nil
}

// Replace sets all Pods of a source. They must not be modified afterwards.
func (s *Static) Replace(source string, pods []*corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, next := s.wanted[source], make(map[types.UID]*corev1.Pod, len(pods))
	for _, pod := range pods {
		next[pod.UID] = pod
	}
	for _, pod := range sortByName(slices.Collect(maps.Values(before))) {
		if now := next[pod.UID]; now == nil || nameOf(now) != nameOf(pod) {
			s.remove(pod)
			delete(before, pod.UID)
		}
	}
	for _, pod := range sortByName(slices.Collect(maps.Values(next))) {
		old := before[pod.UID]
		if old == nil {
			if s.uidTaken(source, pod.UID) {
				s.deps.Logger.Warn("ignoring a static Pod: another one has its UID", "pod", nameOf(pod), "uid", pod.UID)
				delete(next, pod.UID)
				continue
			}
			next[pod.UID] = s.stampFirstSeen(pod)
			if other := s.owners[nameOf(pod)]; other != pod.UID && next[other] != nil && s.deps.OnConflict != nil {
				s.deps.OnConflict(next[pod.UID], fmt.Sprintf("Error validating pod %s from %s due to duplicate pod name %q: it "+
					"waits until the other one is gone", nameOf(pod), source, pod.Name))
			}
			s.admit(next[pod.UID])
			continue
		}
		// Only a Pod whose manifest gives it a UID can change and still be the same.
		next[pod.UID] = old
		if !sameDesired(old, pod) {
			next[pod.UID] = s.stampFirstSeen(pod)
			s.update(next[pod.UID])
		}
	}
	s.wanted[source] = next
}

// PodGone says that nothing is left of a Pod on the node. The next Pod of its name is added, and so is one with its UID
// and another name.
func (s *Static) PodGone(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name, known := s.ownerNames[uid]
	if !known {
		return
	}
	delete(s.ownerNames, uid)
	delete(s.owners, name)
	s.admitNext(name)
	for _, other := range slices.SortedFunc(maps.Keys(s.waiting), byName) {
		if s.waiting[other][0].UID == uid {
			s.admitNext(other)
		}
	}
}

// admitNext adds the Pod that has waited longest for a name, unless another Pod still has the name or its UID. The
// caller holds mu.
func (s *Static) admitNext(name types.NamespacedName) {
	queue := s.waiting[name]
	if len(queue) == 0 {
		return
	}
	_, held := s.owners[name]
	if _, ending := s.ownerNames[queue[0].UID]; held || ending {
		return
	}
	s.waiting[name] = queue[1:]
	if len(queue) == 1 {
		delete(s.waiting, name)
	}
	s.emitAdd(queue[0])
}

// uidTaken reports whether another source has a Pod with the UID. The caller holds mu.
func (s *Static) uidTaken(source string, uid types.UID) bool {
	for other, pods := range s.wanted {
		if other != source && pods[uid] != nil {
			return true
		}
	}
	return false
}

// admit adds a new Pod, or makes it wait for its name. The caller holds mu.
func (s *Static) admit(pod *corev1.Pod) {
	name := nameOf(pod)
	_, held := s.owners[name]
	_, ending := s.ownerNames[pod.UID] // under another name
	if held || ending {
		s.waiting[name] = append(s.waiting[name], pod)
		return
	}
	s.emitAdd(pod)
}

// emitAdd adds a Pod whose name is free. The caller holds mu.
func (s *Static) emitAdd(pod *corev1.Pod) {
	name := nameOf(pod)
	s.owners[name], s.ownerNames[pod.UID] = pod.UID, name
	s.deps.Handle(Change{Op: Add, Pod: pod})
}

// update passes on a Pod's new version, or stores it while the Pod waits. The caller holds mu.
func (s *Static) update(pod *corev1.Pod) {
	name := nameOf(pod)
	if i := indexOfUID(s.waiting[name], pod.UID); i >= 0 {
		s.waiting[name][i] = pod
		return
	}
	s.deps.Handle(Change{Op: Update, Pod: pod})
}

// remove terminates a Pod that its source does not have any more, with its own grace period. The caller holds mu.
func (s *Static) remove(pod *corev1.Pod) {
	name := nameOf(pod)
	if i := indexOfUID(s.waiting[name], pod.UID); i >= 0 {
		if s.waiting[name] = slices.Delete(s.waiting[name], i, i+1); len(s.waiting[name]) == 0 {
			delete(s.waiting, name)
		}
		s.admitNext(name) // others may have waited behind it
		return
	}
	ending := *pod
	now := metav1.NewTime(s.deps.Clock.Now())
	ending.DeletionTimestamp, ending.DeletionGracePeriodSeconds = &now, pod.Spec.TerminationGracePeriodSeconds
	s.deps.Handle(Change{Op: Delete, Pod: &ending})
	s.deps.Handle(Change{Op: Remove, Pod: &ending})
}

// stampFirstSeen returns a copy of the Pod with the time at which it was first seen, which is its creation time as well.
func (s *Static) stampFirstSeen(pod *corev1.Pod) *corev1.Pod {
	out := *pod
	out.Annotations = maps.Clone(pod.Annotations)
	if out.Annotations == nil {
		out.Annotations = map[string]string{}
	}
	now := s.deps.Clock.Now()
	out.Annotations[SeenAnnotation] = now.Format(time.RFC3339Nano)
	if out.CreationTimestamp.IsZero() {
		out.CreationTimestamp = metav1.NewTime(now)
	}
	return &out
}

func byName(x, y types.NamespacedName) int {
	return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
}

func nameOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

func indexOfUID(pods []*corev1.Pod, uid types.UID) int {
	return slices.IndexFunc(pods, func(p *corev1.Pod) bool { return p.UID == uid })
}

func sortByName(pods []*corev1.Pod) []*corev1.Pod {
	slices.SortFunc(pods, func(x, y *corev1.Pod) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name), cmp.Compare(x.UID, y.UID))
	})
	return pods
}
