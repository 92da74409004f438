package cache

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

// DesiredStateOfWorld is which volumes should be attached to which managed nodes, and for which Pods. Pods are named
// by their UID. What it returns is the caller's own, but for the objects it points to, which are shared.
type DesiredStateOfWorld interface {
	// AddNode adds a node to the managed nodes. Adding it again changes nothing.
	AddNode(node types.NodeName)
	// AddPod notes that the Pod on the node uses the volume, and returns the volume's unique name. Again is no change,
	// but takes over the newer Pod. It is an error if the node is not managed or the volume not attachable.
	AddPod(podName types.UID, pod *corev1.Pod, spec *volume.Spec, node types.NodeName) (corev1.UniqueVolumeName, error)
	// DeleteNode ends the management of the node. It is an error, and the node stays, while Pods want volumes there.
	// An unknown node is no error.
	DeleteNode(node types.NodeName) error
	// DeletePod notes that the Pod does not use the volume any more; the last Pod takes the volume with it. What is
	// not known is no error.
	DeletePod(podName types.UID, name corev1.UniqueVolumeName, node types.NodeName)
	// NodeExists reports whether the node is managed.
	NodeExists(node types.NodeName) bool
	// VolumeExists reports whether the volume should be attached to the node.
	VolumeExists(name corev1.UniqueVolumeName, node types.NodeName) bool
	// GetVolumeToAttach is the volume that should be attached to the node; false if it should not.
	GetVolumeToAttach(name corev1.UniqueVolumeName, node types.NodeName) (VolumeToAttach, bool)
	// GetVolumesToAttach is all that should be attached. It costs as much as there is.
	GetVolumesToAttach() []VolumeToAttach
	// GetVolumeNodesToAttach is the names of all that should be attached.
	GetVolumeNodesToAttach() []VolumeNode
	// GetPodToAdd is every volume of every Pod, so that a Pod with several volumes is there several times.
	GetPodToAdd() []PodToAdd
	// SetMultiAttachError notes that the Pods which use the volume on the node were notified that it is attached
	// elsewhere. Pods that come later have not.
	SetMultiAttachError(name corev1.UniqueVolumeName, node types.NodeName)
	// MarkPodsNotified does the same for these Pods alone: one that came meanwhile was not notified.
	MarkPodsNotified(name corev1.UniqueVolumeName, node types.NodeName, pods []*corev1.Pod)
	// GetVolumePodsOnNodes is the Pods that use the volume on any of the nodes, in the order of their names.
	GetVolumePodsOnNodes(nodes []types.NodeName, name corev1.UniqueVolumeName) []*corev1.Pod
}

// VolumeToAttach is a volume that should be attached to a node.
type VolumeToAttach struct {
	operationexecutor.VolumeToAttach
}

// PodToAdd is one volume of one Pod.
type PodToAdd struct {
	Pod        *corev1.Pod
	VolumeName corev1.UniqueVolumeName
	NodeName   types.NodeName
}

// NewDesiredStateOfWorld returns a desired state of the world that has no nodes. The plugins derive the names of volumes
// from their specs.
func NewDesiredStateOfWorld(plugins operationexecutor.PluginFinder) *Desired {
	return &Desired{
		plugins: plugins,
		nodes:   make(map[types.NodeName]map[corev1.UniqueVolumeName]*desiredVolume),
		total:   make(Count),
		perNode: make(map[types.NodeName]Count),
	}
}

// Desired is a DesiredStateOfWorld in memory, and a Notifier.
type Desired struct {
	plugins     operationexecutor.PluginFinder
	subscribers subscribers

	mu      sync.RWMutex // guards the three below
	nodes   map[types.NodeName]map[corev1.UniqueVolumeName]*desiredVolume
	total   Count                    // volumes by plugin, one for each node that wants it
	perNode map[types.NodeName]Count // volumes of Pods by plugin, one for each Pod
}

// desiredVolume is a volume that should be attached to one node.
type desiredVolume struct {
	spec   *volume.Spec
	plugin string
	pods   map[types.UID]*podUse
}

// podUse is a Pod that uses a volume.
type podUse struct {
	pod      *corev1.Pod
	notified bool
}

var (
	_ DesiredStateOfWorld = (*Desired)(nil)
	_ Notifier            = (*Desired)(nil)
)

// Subscribe implements Notifier.
func (d *Desired) Subscribe(f func(VolumeNode)) { d.subscribers = append(d.subscribers, f) }

// AddNode implements DesiredStateOfWorld.
func (d *Desired) AddNode(node types.NodeName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.nodes[node]; !ok {
		d.nodes[node] = make(map[corev1.UniqueVolumeName]*desiredVolume)
	}
}

// AddPod implements DesiredStateOfWorld.
func (d *Desired) AddPod(podName types.UID, pod *corev1.Pod, spec *volume.Spec, node types.NodeName,
) (corev1.UniqueVolumeName, error) {
	name, err := operationexecutor.UniqueVolumeNameFromSpec(d.plugins, spec)
	if err != nil {
		return "", fmt.Errorf("add pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	volumes, ok := d.nodes[node]
	if !ok {
		return "", fmt.Errorf("add pod %s/%s: node %q is not managed", pod.Namespace, pod.Name, node)
	}
	want := volumes[name]
	if want == nil {
		want = &desiredVolume{plugin: pluginLabel(name), pods: make(map[types.UID]*podUse)}
		volumes[name] = want
		d.total.add(want.plugin, 1)
	}
	want.spec = spec
	if known := want.pods[podName]; known != nil {
		known.pod = pod
		return name, nil
	}
	want.pods[podName] = &podUse{pod: pod}
	if d.perNode[node] == nil {
		d.perNode[node] = make(Count)
	}
	d.perNode[node].add(want.plugin, 1)
	d.subscribers.notify(VolumeNode{name, node})
	return name, nil
}

// DeleteNode implements DesiredStateOfWorld.
func (d *Desired) DeleteNode(node types.NodeName) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.nodes[node]); n > 0 {
		return fmt.Errorf("delete node %q: pods still want %d volumes there", node, n)
	}
	delete(d.nodes, node)
	return nil
}

// DeletePod implements DesiredStateOfWorld.
func (d *Desired) DeletePod(podName types.UID, name corev1.UniqueVolumeName, node types.NodeName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	want := d.nodes[node][name]
	if want == nil || want.pods[podName] == nil {
		return
	}
	delete(want.pods, podName)
	d.perNode[node].add(want.plugin, -1)
	if len(d.perNode[node]) == 0 {
		delete(d.perNode, node)
	}
	if len(want.pods) == 0 {
		delete(d.nodes[node], name)
		d.total.add(want.plugin, -1)
	}
	d.subscribers.notify(VolumeNode{name, node})
}

// NodeExists implements DesiredStateOfWorld.
func (d *Desired) NodeExists(node types.NodeName) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	_, ok := d.nodes[node]
	return ok
}

// VolumeExists implements DesiredStateOfWorld.
func (d *Desired) VolumeExists(name corev1.UniqueVolumeName, node types.NodeName) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.nodes[node][name] != nil
}

// GetVolumeToAttach implements DesiredStateOfWorld.
func (d *Desired) GetVolumeToAttach(name corev1.UniqueVolumeName, node types.NodeName) (VolumeToAttach, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	want := d.nodes[node][name]
	if want == nil {
		return VolumeToAttach{}, false
	}
	return want.export(name, node), true
}

// GetVolumesToAttach implements DesiredStateOfWorld.
func (d *Desired) GetVolumesToAttach() []VolumeToAttach {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var all []VolumeToAttach
	for node, volumes := range d.nodes {
		for name, want := range volumes {
			all = append(all, want.export(name, node))
		}
	}
	return all
}

// GetVolumeNodesToAttach implements DesiredStateOfWorld.
func (d *Desired) GetVolumeNodesToAttach() []VolumeNode {
	d.mu.RLock()
	defer d.mu.RUnlock()
	n := 0
	for _, volumes := range d.nodes {
		n += len(volumes)
	}
	all := make([]VolumeNode, 0, n)
	for node, volumes := range d.nodes {
		for name := range volumes {
			all = append(all, VolumeNode{name, node})
		}
	}
	return all
}

// export returns the copy that callers get. The caller holds mu.
func (w *desiredVolume) export(name corev1.UniqueVolumeName, node types.NodeName) VolumeToAttach {
	out := operationexecutor.VolumeToAttach{VolumeName: name, VolumeSpec: w.spec, NodeName: node}
	for _, user := range w.pods {
		out.ScheduledPods = append(out.ScheduledPods, user.pod)
		if !user.notified {
			out.PodsToNotify = append(out.PodsToNotify, user.pod)
		}
	}
	sortPods(out.ScheduledPods)
	sortPods(out.PodsToNotify)
	out.MultiAttachErrorReported = len(out.PodsToNotify) == 0
	return VolumeToAttach{out}
}

func sortPods(pods []*corev1.Pod) {
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
}

// GetPodToAdd implements DesiredStateOfWorld.
func (d *Desired) GetPodToAdd() []PodToAdd {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var all []PodToAdd
	for node, volumes := range d.nodes {
		for name, want := range volumes {
			for _, user := range want.pods {
				all = append(all, PodToAdd{Pod: user.pod, VolumeName: name, NodeName: node})
			}
		}
	}
	return all
}

// SetMultiAttachError implements DesiredStateOfWorld.
func (d *Desired) SetMultiAttachError(name corev1.UniqueVolumeName, node types.NodeName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if want := d.nodes[node][name]; want != nil {
		for _, user := range want.pods {
			user.notified = true
		}
	}
}

// MarkPodsNotified implements DesiredStateOfWorld.
func (d *Desired) MarkPodsNotified(name corev1.UniqueVolumeName, node types.NodeName, pods []*corev1.Pod) {
	d.mu.Lock()
	defer d.mu.Unlock()
	want := d.nodes[node][name]
	if want == nil {
		return
	}
	for _, pod := range pods {
		if user := want.pods[pod.UID]; user != nil {
			user.notified = true
		}
	}
}

// GetVolumePodsOnNodes implements DesiredStateOfWorld.
func (d *Desired) GetVolumePodsOnNodes(nodes []types.NodeName, name corev1.UniqueVolumeName) []*corev1.Pod {
	d.mu.RLock()
	defer d.mu.RUnlock()
	var pods []*corev1.Pod
	for _, node := range nodes {
		if want := d.nodes[node][name]; want != nil {
			for _, user := range want.pods {
				pods = append(pods, user.pod)
			}
		}
	}
	sortPods(pods)
	return pods
}

// Counts is how many pairs of a volume and a node there are, by plugin. It costs as much as there are plugins.
func (d *Desired) Counts() Count {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return maps.Clone(d.total)
}

// CountsPerNode is how many volumes the Pods of each node use, by plugin.
func (d *Desired) CountsPerNode() map[types.NodeName]Count {
	d.mu.RLock()
	defer d.mu.RUnlock()
	all := make(map[types.NodeName]Count, len(d.perNode))
	for node, count := range d.perNode {
		all[node] = maps.Clone(count)
	}
	return all
}

// pluginLabel is the plugin's name as metrics show it: for CSI the driver's name is added.
func pluginLabel(name corev1.UniqueVolumeName) string {
	plugin, volumeName, err := operationexecutor.SplitUniqueVolumeName(name)
	if err != nil {
		return "unknown"
	}
	if driver, _, ok := strings.Cut(volumeName, "^"); ok && plugin == "kubernetes.io/csi" {
		return plugin + ":" + driver
	}
	return plugin
}
