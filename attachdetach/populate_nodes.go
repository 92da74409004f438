package attachdetach

import (
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/attachdetach/cache"
	"github.com/berth-dev/berth/attachdetach/reconciler"
)

const (
	// managedAnnotation is set, with any value, by kubelets that leave attaching to the controller.
	managedAnnotation = "volumes.kubernetes.io/controller-managed-attach-detach"
	// keepTerminatedAnnotation, if "true", keeps the volumes of Pods that have ended attached until the Pods are gone.
	keepTerminatedAnnotation = "volumes.kubernetes.io/keep-terminated-pod-volumes"
)

// nodeState is the last state of a node.
type nodeState struct {
	uid            types.UID
	ready          corev1.ConditionStatus
	outOfService   bool
	maxWait        string
	keepTerminated bool
	attached       []corev1.AttachedVolume
	inUse          []corev1.UniqueVolumeName
}

func nodeStateOf(node *corev1.Node) nodeState {
	state := nodeState{
		uid: node.UID, attached: node.Status.VolumesAttached, inUse: node.Status.VolumesInUse,
		maxWait:        node.Annotations[reconciler.AnnMaxWaitForUnmount],
		keepTerminated: node.Annotations[keepTerminatedAnnotation] == "true",
		outOfService: slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
			return t.Key == corev1.TaintNodeOutOfService
		}),
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			state.ready = condition.Status
		}
	}
	return state
}

// isSelected reports whether the controller works for the node.
func (f *populator) isSelected(node *corev1.Node) bool {
	return f.config.NodeSelector == nil || f.config.NodeSelector.Matches(labels.Set(node.Labels))
}

// syncNode updates both states of the world from the Node.
func (f *populator) syncNode(name string) {
	nodeName := types.NodeName(name)
	last, deleted := f.listers.deletedNodes.take(nodeName)
	node, err := f.listers.nodes.Get(name)
	if err != nil { // it does not exist
		if deleted {
			f.actual.SetVolumesMountedByNode(last, nodeName)
			f.retryUnmounted(nodeName, f.nodes[nodeName].inUse, last)
		}
		delete(f.nodes, nodeName)
		f.unmanageNode(nodeName)
		f.engine.NodeChanged(nodeName)
		return
	}
	_, managed := node.Annotations[managedAnnotation]
	if f.foreign.set(nodeName, !f.isSelected(node)) {
		f.engine.NodeChanged(nodeName)
	}
	if managed = managed && f.isSelected(node); managed {
		delete(f.unmanaging, nodeName)
	} else {
		f.unmanageNode(nodeName)
		if !f.isSelected(node) {
			return
		}
	}
	before, known := f.nodes[nodeName]
	now := nodeStateOf(node)
	f.nodes[nodeName] = now
	if managed && !f.desired.NodeExists(nodeName) {
		f.desired.AddNode(nodeName)
		f.syncPodsByIndex(indexByNode, name)
	} else if known && before.keepTerminated != now.keepTerminated {
		f.syncPodsByIndex(indexByNode, name)
	}
	f.actual.SetVolumesMountedByNode(now.inUse, nodeName)
	f.retryUnmounted(nodeName, before.inUse, now.inUse)
	if managed && (!known || before.uid != now.uid || !slices.Equal(before.attached, now.attached)) {
		f.actual.ReconcileReported(nodeName, now.attached)
	}
	if before.maxWait != now.maxWait {
		if _, err := reconciler.MaxWaitForUnmountOf(node); err != nil {
			f.logger.Warn("ignoring the invalid limit of the node", "error", err)
		}
	}
	if !known || before.uid != now.uid || before.ready != now.ready || before.outOfService != now.outOfService ||
		before.maxWait != now.maxWait {
		f.engine.NodeChanged(nodeName)
	}
}

// retryUnmounted detaches volumes that the node has released at once, even if that failed before because it had not.
func (f *populator) retryUnmounted(node types.NodeName, before, now []corev1.UniqueVolumeName) {
	if slices.Equal(before, now) {
		return
	}
	left := make(map[corev1.UniqueVolumeName]struct{}, len(now))
	for _, name := range now {
		left[name] = struct{}{}
	}
	for _, name := range before {
		if _, ok := left[name]; ok || f.desired.VolumeExists(name, node) {
			continue
		}
		if attached, ok := f.actual.GetAttachedVolume(name, node); ok {
			f.retryNow(cache.VolumeNode{Volume: name, Node: node}, attached.VolumeSpec)
		}
	}
}

// nodeSet is a set of nodes that is safe for concurrent use.
type nodeSet struct {
	mu    sync.RWMutex
	nodes map[types.NodeName]struct{}
}

// set puts the node into the set, or takes it out, and reports whether that changed anything.
func (s *nodeSet) set(node types.NodeName, in bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, was := s.nodes[node]
	switch {
	case was == in:
		return false
	case !in:
		delete(s.nodes, node)
	case s.nodes == nil:
		s.nodes = map[types.NodeName]struct{}{node: {}}
	default:
		s.nodes[node] = struct{}{}
	}
	return true
}

func (s *nodeSet) has(node types.NodeName) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, ok := s.nodes[node]
	return ok
}

// unmanageNode ends the management of the node, now or when its last Pod with volumes is gone.
func (f *populator) unmanageNode(name types.NodeName) {
	if err := f.desired.DeleteNode(name); err != nil {
		f.unmanaging[name] = struct{}{}
		return
	}
	delete(f.unmanaging, name)
}
