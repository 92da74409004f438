package attachdetach

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

var everything = labels.Everything()

// podState is what stands in the desired state of the world for a Pod: the unique name of each of its volumes.
type podState struct {
	uid     types.UID
	node    types.NodeName
	volumes map[string]corev1.UniqueVolumeName
}

// syncPod updates the desired state of the world from the Pod.
func (f *populator) syncPod(key string) {
	obj, _, err := f.listers.pods.GetByKey(key)
	f.logListError("pods", err)
	pod, _ := obj.(*corev1.Pod)
	state := f.pods[key]
	if state != nil && (pod == nil || pod.UID != state.uid || types.NodeName(pod.Spec.NodeName) != state.node ||
		f.releasesVolumes(pod)) {
		f.removePod(key, state)
		state = nil
	}
	if pod == nil || pod.Spec.NodeName == "" || f.releasesVolumes(pod) {
		return
	}
	node := types.NodeName(pod.Spec.NodeName)
	if !f.desired.NodeExists(node) {
		return // synced again when the node becomes managed
	}
	if state == nil {
		state = &podState{uid: pod.UID, node: node, volumes: make(map[string]corev1.UniqueVolumeName)}
	}
	for i := range pod.Spec.Volumes {
		f.syncPodVolume(pod, &pod.Spec.Volumes[i], state)
	}
	if len(state.volumes) > 0 {
		f.pods[key] = state
	} else {
		delete(f.pods, key)
	}
}

// syncPodVolume updates the desired state of the world from one volume of the Pod. While the volume is unknown, the state
// is left as it is: a claim that cannot be read is no reason to detach.
func (f *populator) syncPodVolume(pod *corev1.Pod, v *corev1.Volume, state *podState) {
	spec, err := f.volumeSpec(pod, v)
	if err != nil {
		f.logger.Debug("volume of pod is not ready to be attached", "pod", pod.Namespace+"/"+pod.Name, "volume", v.Name,
			"reason", err)
		return
	}
	known, had := state.volumes[v.Name]
	name, err := f.desired.AddPod(pod.UID, pod, spec, state.node)
	switch {
	case errors.Is(err, operationexecutor.ErrNotAttachable):
		delete(state.volumes, v.Name)
	case err != nil:
		f.logger.Error("failed to add volume of pod", "volume", v.Name, "error", err)
		return
	default:
		state.volumes[v.Name] = name
	}
	if had && known != state.volumes[v.Name] {
		f.removePodVolume(state, known)
	}
}

// removePodVolume ends the Pod's use of a volume, unless another of its volumes is the same one.
func (f *populator) removePodVolume(state *podState, name corev1.UniqueVolumeName) {
	for _, other := range state.volumes {
		if other == name {
			return
		}
	}
	f.desired.DeletePod(state.uid, name, state.node)
}

// removePod ends the Pod's use of all its volumes.
func (f *populator) removePod(key string, state *podState) {
	for _, name := range state.volumes {
		f.desired.DeletePod(state.uid, name, state.node)
	}
	delete(f.pods, key)
	if _, ok := f.unmanaging[state.node]; ok {
		f.unmanageNode(state.node)
	}
}

// releasesVolumes reports whether the Pod needs its volumes no longer: it has ended, or is being deleted and nothing of it runs.
// A node can ask to keep the volumes until the Pod is gone.
func (f *populator) releasesVolumes(pod *corev1.Pod) bool {
	over := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed ||
		pod.DeletionTimestamp != nil && !hasRunningContainer(pod)
	return over && !f.nodes[types.NodeName(pod.Spec.NodeName)].keepTerminated
}

func hasRunningContainer(pod *corev1.Pod) bool {
	for status := range podutil.Statuses(&pod.Status) {
		if status.State.Terminated == nil && status.State.Waiting == nil {
			return true
		}
	}
	return false
}

// claimName is the claim that the volume stands for, empty if it is none.
func claimName(pod *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return pod.Name + "-" + v.Name
	}
	return ""
}

// volumeSpec is the volume with its claim and PersistentVolume, which must be bound to each other.
func (f *populator) volumeSpec(pod *corev1.Pod, v *corev1.Volume) (*volume.Spec, error) {
	name := claimName(pod, v)
	if name == "" {
		return &volume.Spec{Name: v.Name, Volume: v}, nil
	}
	claim, err := f.listers.claims.PersistentVolumeClaims(pod.Namespace).Get(name)
	if err != nil {
		return nil, fmt.Errorf("read claim %q: %w", name, err)
	}
	if v.Ephemeral != nil && !metav1.IsControlledBy(claim, pod) {
		return nil, fmt.Errorf("claim %q was not made for pod %q; delete or rename it", name, pod.Name)
	}
	if claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "" {
		return nil, fmt.Errorf("claim %q is not bound", name)
	}
	pv, err := f.listers.volumes.Get(claim.Spec.VolumeName)
	if err != nil {
		return nil, fmt.Errorf("read volume %q of claim %q: %w", claim.Spec.VolumeName, name, err)
	}
	if pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID {
		return nil, fmt.Errorf("volume %q is not bound to claim %q", pv.Name, name)
	}
	return &volume.Spec{Name: v.Name, Volume: v, PVC: claim, PV: pv}, nil
}
