package attachdetach

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
)

const (
	pluginName        = "bench.example.com/disk"
	maxWaitForUnmount = 6 * time.Minute
	verifyPeriod      = time.Minute
)

// controllerUnderTest is a reconciler with all around it. Disks are exclusive, and named like their PersistentVolumes.
type controllerUnderTest interface {
	// addNode makes a node known.
	addNode(node types.NodeName)
	// want says that a Pod on the node wants the disk; unwant that none does any more.
	want(d *disk, node types.NodeName) error
	unwant(d *disk, node types.NodeName)
	// attached says that the disk is attached to the node already.
	attached(d *disk, node types.NodeName) error
	// unmounted says that the node has nothing mounted.
	unmounted(node types.NodeName)
	// run reconciles until ctx ends.
	run(ctx context.Context) error
}

// disk is a volume and the Pod that uses it.
type disk struct {
	pv  *corev1.PersistentVolume
	pod *corev1.Pod
}

func newDisk(name string) *disk {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pv.Spec.ISCSI = &corev1.ISCSIPersistentVolumeSource{TargetPortal: "192.0.2.1", IQN: name}
	return &disk{pv: pv, pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: name, UID: types.UID("pod-" + name)}}}
}

func (d *disk) unique() corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName(pluginName + "/" + d.pv.Name)
}

// storage is what plugins of both call.
type storage struct {
	onAttach chan string // gets each disk attached

	mu sync.Mutex // guards all below
	// writeTime is how long a write of a node's status takes.
	writeTime time.Duration
	attaches  map[string]time.Time
	detached  int
	// writes counts the writes of each node's status, and writesBefore what it was when the node's first detach began.
	writes, writesBefore map[types.NodeName]int
	allDetached          chan struct{}
	detachesWanted       int
}

func newStorage() *storage {
	return &storage{
		attaches: make(map[string]time.Time), writes: make(map[types.NodeName]int),
		writesBefore: make(map[types.NodeName]int), onAttach: make(chan string, 1), allDetached: make(chan struct{}),
	}
}

func (s *storage) attach(name string) {
	s.mu.Lock()
	s.attaches[name] = time.Now()
	s.mu.Unlock()
	s.onAttach <- name
}

func (s *storage) detach(node types.NodeName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writesBefore[node] = s.writes[node]
	if s.detached++; s.detached == s.detachesWanted {
		close(s.allDetached)
	}
}

// write is a write of a node's status to the API server.
func (s *storage) write(node types.NodeName) {
	s.mu.Lock()
	takes := s.writeTime
	s.mu.Unlock()
	if takes > 0 {
		timer := time.NewTimer(takes)
		defer timer.Stop()
		<-timer.C
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes[node]++
}

// nodes is a lister of ready nodes.
func nodes(names []types.NodeName) (corelisters.NodeLister, error) {
	indexer := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{})
	for _, name := range names {
		node := readyNode(string(name))
		if err := indexer.Add(node); err != nil {
			return nil, fmt.Errorf("list node %q: %w", name, err)
		}
	}
	return corelisters.NewNodeLister(indexer), nil
}

func readyNode(name string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return node
}
