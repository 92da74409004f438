package volumemanager

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/component-helpers/storage/ephemeral"
	storagehelpers "k8s.io/component-helpers/storage/volume"

	"github.com/berth-dev/berth/kubelet/authzretry"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/volume"
)

// claimError means that a volume waits for its claim.
type claimError struct {
	namespace, name string
	err             error
}

func (e *claimError) Error() string {
	return fmt.Sprintf("use claim %s/%s: %v", e.namespace, e.name, e.err)
}
func (e *claimError) Unwrap() error { return e.err }

// resolve returns what an entry of spec.volumes refers to: itself, or the PersistentVolume of its claim. It also
// returns whether the Pod uses it read-only.
func (m *Manager) resolve(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) (volume.Spec, bool, error) {
	spec := volume.Spec{Name: v.Name, Volume: v}
	var claimName string
	readOnly := false
	switch {
	case v.PersistentVolumeClaim != nil:
		claimName, readOnly = v.PersistentVolumeClaim.ClaimName, v.PersistentVolumeClaim.ReadOnly
	case v.Ephemeral != nil:
		claimName = ephemeral.VolumeClaimName(pod, v)
	default:
		return spec, false, nil
	}
	pending := func(err error) error {
		return &claimError{namespace: pod.Namespace, name: claimName, err: err}
	}
	claim, err := authzretry.Do(ctx, m.clock, func(ctx context.Context) (*corev1.PersistentVolumeClaim, error) {
		return m.deps.Client.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, claimName, metav1.GetOptions{})
	})
	if err != nil {
		return spec, false, pending(err)
	}
	timeline.Current(ctx).SetCause(timeline.RefOf("PersistentVolumeClaim", claim))
	if v.Ephemeral != nil {
		if err := ephemeral.VolumeIsForPod(pod, claim); err != nil {
			return spec, false, pending(err)
		}
	}
	if claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "" {
		return spec, false, pending(fmt.Errorf("it is not bound to a volume yet, its phase is %q", claim.Status.Phase))
	}
	pv, err := authzretry.Do(ctx, m.clock, func(ctx context.Context) (*corev1.PersistentVolume, error) {
		return m.deps.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	})
	if err != nil {
		return spec, false, pending(fmt.Errorf("get its volume: %w", err))
	}
	if pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID {
		return spec, false, pending(fmt.Errorf("persistent volume %q is bound to another claim", pv.Name))
	}
	spec.PVC, spec.PV = claim, pv
	if claim.DeletionTimestamp != nil && !m.isOnDisk(pod, spec) {
		return spec, false, pending(fmt.Errorf("it is being deleted, so no new pod may use it"))
	}
	asMount, asDevice := usedAs(pod, v.Name)
	if asMount && spec.IsBlock() {
		return spec, false, pending(fmt.Errorf("persistent volume %q has volumeMode Block, but the pod names it in "+
			"volumeMounts: use a claim with volumeMode Filesystem", pv.Name))
	}
	if asDevice && !spec.IsBlock() {
		return spec, false, pending(fmt.Errorf("persistent volume %q has volumeMode Filesystem, but the pod names it "+
			"in volumeDevices: use a claim with volumeMode Block", pv.Name))
	}
	return spec, readOnly, nil
}

// isOnDisk reports whether the Pod has used the volume already, under an earlier process.
func (m *Manager) isOnDisk(pod *corev1.Pod, spec volume.Spec) bool {
	plugin, err := m.deps.Plugins.Find(spec)
	if err != nil {
		return false
	}
	_, err = m.deps.Mounter.IsMountPoint(m.volumeDir(pod.UID, plugin, spec))
	return err == nil
}

// watchClaim watches the claim, beginning with its current state. It returns nil if that is not possible: an ordinary
// node may read its claims but not watch them.
func (m *Manager) watchClaim(ctx context.Context, claim *claimError) watch.Interface {
	events, err := m.deps.Client.CoreV1().PersistentVolumeClaims(claim.namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector("metadata.name", claim.name).String(),
		ResourceVersion: "0",
	})
	if err != nil {
		m.logger.Debug("failed to watch claim; polling it instead", "namespace", claim.namespace,
			"claim", claim.name, "error", err)
		return nil
	}
	return events
}

// affinityError means that this node may not be one that has the volume.
type affinityError struct{ err error }

func (e *affinityError) Error() string { return e.err.Error() }
func (e *affinityError) Unwrap() error { return e.err }

// checkNodeAffinity returns an error unless the volume's spec.nodeAffinity allows this node: what has its path or handle here would be other
// data.
func (m *Manager) checkNodeAffinity(ctx context.Context, pv *corev1.PersistentVolume) error {
	if pv == nil || pv.Spec.NodeAffinity == nil {
		return nil
	}
	node, err := m.deps.Client.CoreV1().Nodes().Get(ctx, m.config.NodeName, metav1.GetOptions{})
	if err != nil {
		return &affinityError{fmt.Errorf("read this node's labels for persistent volume %q: %w", pv.Name, err)}
	}
	if err := storagehelpers.CheckNodeAffinity(pv, node.Labels); err != nil {
		return &affinityError{fmt.Errorf("compare spec.nodeAffinity of persistent volume %q with the labels of node %q: %w",
			pv.Name, node.Name, err)}
	}
	return nil
}
