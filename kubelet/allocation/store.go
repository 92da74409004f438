package allocation

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/internal/wakeup"
)

// The files, in the directory of the node agent. Their names are upstream's.
const (
	AllocatedFile = "allocated_pods_state"
	ActuatedFile  = "actuated_pods_state"
)

// Store holds what was granted and what was told. It is safe for concurrent use. Its methods do not wait for the disk:
// Start writes, soon after a change and once for all changes that came meanwhile. What a crash keeps from being written
// is at worst decided again.
type Store struct {
	logger *slog.Logger
	dirty  wakeup.Signal

	mu                  sync.Mutex // guards all below
	allocated, actuated checkpointState
}

// checkpointState is one file and what it is to hold.
type checkpointState struct {
	path    string
	changed bool // since it was written
	pods    map[types.UID]Resources
	// encoded are the entries as they are written, so that a change of one Pod does not cost the wording of all.
	encoded map[types.UID]json.RawMessage
}

// Open reads both files in dir. What cannot be read is discarded with a warning.
func Open(dir string, logger *slog.Logger) *Store {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	s := &Store{logger: logger, dirty: wakeup.NewSignal()}
	s.allocated = openCheckpoint(filepath.Join(dir, AllocatedFile), logger)
	s.actuated = openCheckpoint(filepath.Join(dir, ActuatedFile), logger)
	return s
}

func openCheckpoint(path string, logger *slog.Logger) checkpointState {
	l := checkpointState{path: path, pods: map[types.UID]Resources{}, encoded: map[types.UID]json.RawMessage{}}
	held, err := readCheckpoint(path)
	if err != nil {
		logger.Warn("a checkpoint of resources cannot be read and is discarded: statuses and runtime tell instead",
			"file", path, "error", err)
	}
	for uid, resources := range held {
		l.put(uid, resources)
	}
	l.changed = false
	return l
}

func (l *checkpointState) put(uid types.UID, resources Resources) {
	word, err := json.Marshal(resources)
	if err != nil {
		return // quantities and names always can be worded
	}
	if string(l.encoded[uid]) == string(word) {
		return
	}
	l.pods[uid], l.encoded[uid], l.changed = resources, word, true
}

func (l *checkpointState) drop(uid types.UID) {
	if _, held := l.pods[uid]; held {
		delete(l.pods, uid)
		delete(l.encoded, uid)
		l.changed = true
	}
}

// Start writes the files until ctx ends, and once more then.
func (s *Store) Start(ctx context.Context) error {
	for {
		select {
		case <-s.dirty.C():
			s.flush()
		case <-ctx.Done():
			s.flush()
			return nil
		}
	}
}

// flush writes what has changed. What cannot be written is said, and written with the next change.
func (s *Store) flush() {
	for _, l := range []*checkpointState{&s.allocated, &s.actuated} {
		s.mu.Lock()
		changed, worded := l.changed, maps.Clone(l.encoded)
		l.changed = false
		s.mu.Unlock()
		if !changed {
			continue
		}
		if err := writeCheckpoint(l.path, worded); err != nil {
			s.logger.Error("a checkpoint of resources cannot be written", "file", l.path, "error", err)
			s.mu.Lock()
			l.changed = true
			s.mu.Unlock()
		}
	}
}

// change does something to the ledgers, and has them written.
func (s *Store) change(do func()) {
	s.mu.Lock()
	do()
	changed := s.allocated.changed || s.actuated.changed
	s.mu.Unlock()
	if changed {
		s.dirty.Notify()
	}
}

// Allocate notes that the Pod was granted what its spec says.
func (s *Store) Allocate(pod *corev1.Pod) {
	s.change(func() { s.allocated.put(pod.UID, resourcesOf(pod)) })
}

// Granted is the Pod with the resources that were noted last, which is the Pod itself if they are the same. It is nil if
// nothing was noted.
func (s *Store) Allocated(pod *corev1.Pod) *corev1.Pod {
	s.mu.Lock()
	held, found := s.allocated.pods[pod.UID]
	word := string(s.allocated.encoded[pod.UID])
	s.mu.Unlock()
	if !found {
		return nil
	}
	if own, err := json.Marshal(resourcesOf(pod)); err == nil && string(own) == word {
		return pod
	}
	out := pod.DeepCopy()
	for c := range podutil.Containers(&out.Spec) {
		if resources, ok := held.ContainerResources[c.Name]; ok {
			c.Resources = *resources.DeepCopy()
		}
	}
	if held.PodLevelResources != nil {
		out.Spec.Resources = held.PodLevelResources.DeepCopy()
	}
	return out
}

// Actuate notes that a container has what it was granted, in the runtime and in the Pod's control group.
func (s *Store) Actuate(pod *corev1.Pod, container string) {
	now := resourcesOf(pod)
	granted, known := now.ContainerResources[container]
	if !known {
		return
	}
	s.change(func() {
		held := s.actuated.pods[pod.UID]
		next := Resources{ContainerResources: maps.Clone(held.ContainerResources), PodLevelResources: now.PodLevelResources}
		if next.ContainerResources == nil {
			next.ContainerResources = map[string]corev1.ResourceRequirements{}
		}
		next.ContainerResources[container] = granted
		s.actuated.put(pod.UID, next)
	})
}

// Unsettled reports whether a container of the Pod was told to have something else than the Pod was granted, as far as
// was noted.
func (s *Store) HasPendingActuation(pod *corev1.Pod) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	noted, known := s.actuated.pods[pod.UID]
	if !known {
		return false // as of every Pod that has only just come
	}
	granted := resourcesOf(pod)
	for name, told := range noted.ContainerResources {
		want, ok := granted.ContainerResources[name]
		if ok && encode(want) != encode(told) {
			return true
		}
	}
	return false
}

// Forget drops all that was noted of a Pod.
func (s *Store) Forget(uid types.UID) {
	s.change(func() { s.allocated.drop(uid); s.actuated.drop(uid) })
}

// Retain drops all Pods that are not wanted.
func (s *Store) Retain(wanted func(uid types.UID) bool) {
	s.mu.Lock()
	var gone []types.UID
	for _, l := range []*checkpointState{&s.allocated, &s.actuated} {
		for uid := range l.pods {
			gone = append(gone, uid)
		}
	}
	s.mu.Unlock()
	for _, uid := range gone {
		if !wanted(uid) {
			s.Forget(uid)
		}
	}
}

// encode is what resources look like in a file: two values that mean the same read the same.
func encode(r corev1.ResourceRequirements) string {
	out, err := json.Marshal(r)
	if err != nil {
		return fmt.Sprint(r)
	}
	return string(out)
}

// resourcesOf are the resources in the Pod's spec, of the containers whose resources can change while they run.
func resourcesOf(pod *corev1.Pod) Resources {
	r := Resources{ContainerResources: map[string]corev1.ResourceRequirements{}, PodLevelResources: pod.Spec.Resources.DeepCopy()}
	for c, kind := range podutil.Containers(&pod.Spec) {
		if kind == podutil.Regular || podutil.IsSidecar(c, kind) {
			r.ContainerResources[c.Name] = *c.Resources.DeepCopy()
		}
	}
	return r
}
