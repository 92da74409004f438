package allocation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/atomicfile"
	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/internal/statefile"
	"github.com/berth-dev/berth/internal/wakeup"
)

// The files, in the kubelet's directory. Their names are upstream's.
const (
	AllocatedFile = "allocated_pods_state"
	ActuatedFile  = "actuated_pods_state"
)

// Store holds the allocated and the actuated resources. It is safe for concurrent use. Its methods do not wait for the
// disk: Start writes soon after a change, once for all changes that have come. What a crash prevents from being written
// is decided again.
type Store struct {
	logger *slog.Logger
	dirty  wakeup.Signal

	mu                  sync.Mutex // guards all below
	allocated, actuated checkpointState
}

// checkpointState is one file and its content.
type checkpointState struct {
	path    string
	changed bool // since it was written
	pods    map[types.UID]Resources
	// encoded are the entries as they are written, so that a change of one Pod does not encode all of them.
	encoded map[types.UID]json.RawMessage
}

// Open reads both files in dir. What cannot be read is discarded with a warning.
func Open(dir string, logger *slog.Logger) *Store {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	if err := atomicfile.Clean(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		logger.Warn("failed to remove partly written checkpoints", "dir", dir, "error", err)
	}
	s := &Store{logger: logger, dirty: wakeup.NewSignal()}
	s.allocated = openCheckpoint(filepath.Join(dir, AllocatedFile), logger)
	s.actuated = openCheckpoint(filepath.Join(dir, ActuatedFile), logger)
	return s
}

func openCheckpoint(path string, logger *slog.Logger) checkpointState {
	l := checkpointState{path: path, pods: map[types.UID]Resources{}, encoded: map[types.UID]json.RawMessage{}}
	held, err := readCheckpoint(path)
	switch {
	case statefile.IsPassing(err):
		logger.Error("failed to read a checkpoint; the resources of Pods are read from their statuses and from the runtime", "file", path, "error", err)
	case err != nil:
		statefile.SetAside(logger, path, err, "the resources of Pods are read from their statuses and from the runtime")
	}
	for uid, resources := range held {
		l.put(uid, resources)
	}
	l.changed = false
	return l
}

func (l *checkpointState) put(uid types.UID, resources Resources) {
	encoded, err := json.Marshal(resources)
	if err != nil {
		return // quantities and names can always be encoded
	}
	if string(l.encoded[uid]) == string(encoded) {
		return
	}
	l.pods[uid], l.encoded[uid], l.changed = resources, encoded, true
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

// flush writes the files that have changed. One that cannot be written is written with the next change.
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
			s.logger.Error("failed to write a checkpoint of resources; retrying with the next change", "file", l.path, "error", err)
			s.mu.Lock()
			l.changed = true
			s.mu.Unlock()
		}
	}
}

// change modifies the state, and makes Start write it.
func (s *Store) change(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
	if s.allocated.changed || s.actuated.changed {
		s.dirty.Notify()
	}
}

// Allocate records that the resources of the Pod's spec are allocated.
func (s *Store) Allocate(pod *corev1.Pod) {
	s.change(func() { s.allocated.put(pod.UID, resourcesOf(pod)) })
}

// Allocated returns the Pod with the resources allocated last, which is the Pod itself if they are the same, or nil if
// none are recorded.
func (s *Store) Allocated(pod *corev1.Pod) *corev1.Pod {
	s.mu.Lock()
	held, found := s.allocated.pods[pod.UID]
	encoded := string(s.allocated.encoded[pod.UID])
	s.mu.Unlock()
	if !found {
		return nil
	}
	if own, err := json.Marshal(resourcesOf(pod)); err == nil && string(own) == encoded {
		return pod
	}
	out := pod.DeepCopy()
	for c := range podutil.Containers(&out.Spec) {
		if resources, ok := held.ContainerResources[c.Name]; ok {
			c.Resources = *resources.DeepCopy()
		}
	}
	out.Spec.Resources = held.PodLevelResources.DeepCopy()
	return out
}

// Actuate records that a container has its allocated resources in the runtime. The first container of a Pod is created in
// a cgroup with the allocated resources of the Pod as a whole.
func (s *Store) Actuate(pod *corev1.Pod, container string) {
	now := resourcesOf(pod)
	granted, resizable := now.ContainerResources[container]
	if !resizable {
		return
	}
	s.change(func() {
		held, known := s.actuated.pods[pod.UID]
		next := Resources{ContainerResources: maps.Clone(held.ContainerResources), PodLevelResources: held.PodLevelResources}
		if !known {
			next.PodLevelResources = now.PodLevelResources
		}
		if next.ContainerResources == nil {
			next.ContainerResources = map[string]corev1.ResourceRequirements{}
		}
		next.ContainerResources[container] = granted
		s.actuated.put(pod.UID, next)
	})
}

// ActuatePod records that the cgroup of the Pod and all its containers have the allocated resources, also where that changed
// nothing in the runtime.
func (s *Store) ActuatePod(pod *corev1.Pod) {
	s.change(func() {
		if _, known := s.actuated.pods[pod.UID]; known { // else no container has started yet
			s.actuated.put(pod.UID, resourcesOf(pod))
		}
	})
}

// ActuatedMemory returns the memory request that a container was last started or resized with, false if it is not recorded. The
// runtime does not know it.
func (s *Store) ActuatedMemory(uid types.UID, container string) (resource.Quantity, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	recorded, known := s.actuated.pods[uid].ContainerResources[container]
	return *recorded.Requests.Memory(), known
}

// HasPendingActuation reports whether a container of the Pod, or the Pod as a whole, is recorded to have other resources
// than are allocated.
func (s *Store) HasPendingActuation(pod *corev1.Pod) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	recorded, known := s.actuated.pods[pod.UID]
	if !known {
		return false // as for every new Pod
	}
	allocated, none := resourcesOf(pod), corev1.ResourceRequirements{}
	if encode(ptr.Deref(recorded.PodLevelResources, none)) != encode(ptr.Deref(allocated.PodLevelResources, none)) {
		return true
	}
	for name, actuated := range recorded.ContainerResources {
		want, ok := allocated.ContainerResources[name]
		if ok && encode(want) != encode(actuated) {
			return true
		}
	}
	return false
}

// Forget drops the state of a Pod.
func (s *Store) Forget(uid types.UID) {
	s.change(func() { s.allocated.drop(uid); s.actuated.drop(uid) })
}

// Retain drops the state of all Pods that are not wanted.
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

// encode returns resources as they are in a file: equal values have the same text.
func encode(r corev1.ResourceRequirements) string {
	out, err := json.Marshal(r)
	if err != nil {
		return fmt.Sprint(r)
	}
	return string(out)
}

// resourcesOf returns the resources in the Pod's spec of the containers whose resources can change while they run.
func resourcesOf(pod *corev1.Pod) Resources {
	r := Resources{ContainerResources: map[string]corev1.ResourceRequirements{}, PodLevelResources: pod.Spec.Resources.DeepCopy()}
	for c, kind := range podutil.Containers(&pod.Spec) {
		if kind == podutil.Regular || podutil.IsSidecar(c, kind) {
			r.ContainerResources[c.Name] = *c.Resources.DeepCopy()
		}
	}
	return r
}
