package csi

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	volumehelpers "k8s.io/component-helpers/storage/volume"

	"github.com/berth-dev/berth/provision"
)

// ShouldProvision implements provision.Qualifier: with Config.NodeName, only claims that are scheduled to that node are
// provisioned, because each node's driver creates volumes on its own node.
func (p *Provisioner) ShouldProvision(claim *corev1.PersistentVolumeClaim) bool {
	if p.config.NodeName == "" {
		return true
	}
	selected := claim.Annotations[volumehelpers.AnnSelectedNode]
	if selected == "" && p.config.NeedsNode != nil {
		p.config.NeedsNode(claim)
	}
	return selected == p.config.NodeName
}

// ShouldDelete implements provision.DeletionGuard: with Config.NodeName, a volume without a node is of no node's driver.
func (p *Provisioner) ShouldDelete(volume *corev1.PersistentVolume) bool {
	return p.config.NodeName == "" || volume.Spec.NodeAffinity != nil && volume.Spec.NodeAffinity.Required != nil
}

// checkOnThisNode returns an IgnoredError if the provisioner is that of one node, and the volume is not on it.
func (p *Provisioner) checkOnThisNode(ctx context.Context, volume *corev1.PersistentVolume) error {
	if p.config.NodeName == "" {
		return nil
	}
	node, err := p.client.CoreV1().Nodes().Get(ctx, p.config.NodeName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("delete volume %q: get the labels of this node: %w", volume.Name, err)
	}
	if volume.Spec.NodeAffinity == nil || volume.Spec.NodeAffinity.Required == nil {
		return &provision.IgnoredError{Reason: fmt.Sprintf("volume %q is not of one node", volume.Name)}
	}
	if err := volumehelpers.CheckNodeAffinity(volume, node.Labels); err != nil {
		return &provision.IgnoredError{Reason: fmt.Sprintf("volume %q is not on node %q", volume.Name, p.config.NodeName)}
	}
	return nil
}
