package attachdetach

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// lastReports are the volumesInUse of deleted Nodes, until syncNode reads them. A Node may be deleted before the controller has
// synced its last update, and then the cache does not have it any more. It is safe for concurrent use.
type lastReports struct {
	mu    sync.Mutex
	inUse map[types.NodeName][]corev1.UniqueVolumeName
}

// note records the report of an object that was deleted, if it is a Node.
func (r *lastReports) note(obj any) {
	node, ok := lastState(obj).(*corev1.Node)
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inUse == nil {
		r.inUse = make(map[types.NodeName][]corev1.UniqueVolumeName)
	}
	r.inUse[types.NodeName(node.Name)] = node.Status.VolumesInUse
}

// take returns the node's report and removes it. ok is false if there is none.
func (r *lastReports) take(node types.NodeName) (inUse []corev1.UniqueVolumeName, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	inUse, ok = r.inUse[node]
	delete(r.inUse, node)
	return inUse, ok
}
