package csi

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/keylock"
)

// finalizerClone keeps a claim while its volume is being cloned. external-provisioner uses the same one.
const finalizerClone = "provisioner.storage.kubernetes.io/cloning-protection"

// cloneSources counts the clones that are being made of each claim. It is safe for concurrent use.
type cloneSources struct {
	// changing has, by its UID, each claim that is being protected or released: a clone that begins while another one ends must
	// not rely on a finalizer that is about to be removed.
	changing keylock.Locks[types.UID]

	mu     sync.Mutex // guards all below
	inUse  map[types.UID]map[string]bool
	source map[string]*corev1.PersistentVolumeClaim // by the name of the volume
}

func newCloneSources() *cloneSources {
	return &cloneSources{inUse: map[types.UID]map[string]bool{}, source: map[string]*corev1.PersistentVolumeClaim{}}
}

// begin records that the volume is cloned from the claim.
func (c *cloneSources) begin(source *corev1.PersistentVolumeClaim, volume string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inUse[source.UID] == nil {
		c.inUse[source.UID] = map[string]bool{}
	}
	c.inUse[source.UID][volume] = true
	c.source[volume] = source
}

// of returns the claim that the volume is being cloned from, nil if there is none.
func (c *cloneSources) of(volume string) *corev1.PersistentVolumeClaim {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.source[volume]
}

// end records that the volume is not being cloned any more, and returns whether no other volume is cloned from its source.
func (c *cloneSources) end(volume string) (unused bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	source := c.source[volume]
	if source == nil {
		return false
	}
	delete(c.source, volume)
	delete(c.inUse[source.UID], volume)
	if len(c.inUse[source.UID]) > 0 {
		return false
	}
	delete(c.inUse, source.UID)
	return true
}

// uses returns whether a volume is being cloned from the claim.
func (c *cloneSources) uses(source types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.inUse[source]) > 0
}

// protectSource keeps the claim that the plan clones from being deleted until releaseSource.
func (p *Provisioner) protectSource(ctx context.Context, plan *plan) error {
	source := plan.cloned
	if source == nil {
		return nil
	}
	unlock, err := p.clones.changing.Lock(ctx, source.UID)
	if err != nil {
		return fmt.Errorf("keep the claim %q until its volume is cloned: wait for the end of another clone: %w", source.Name, err)
	}
	defer unlock()
	// Without another clone also if the claim was read with the finalizer: the last clone may have removed that since.
	if !p.clones.uses(source.UID) {
		if err := p.patchClone(ctx, source, "finalizers"); err != nil {
			return fmt.Errorf("keep the claim %q until its volume is cloned: %w", source.Name, err)
		}
	}
	p.clones.begin(source, plan.options.PVName)
	return nil
}

// releaseSource allows the deletion of the claim that the volume was cloned from, if no other one is cloned from it.
func (p *Provisioner) releaseSource(ctx context.Context, volume string) {
	source := p.clones.of(volume)
	if source == nil {
		return
	}
	p.releaseClone(ctx, source, func() bool { return p.clones.end(volume) })
}

// releaseClone removes the finalizer of a claim if unused returns true, which it calls while no clone of the claim begins.
func (p *Provisioner) releaseClone(ctx context.Context, source *corev1.PersistentVolumeClaim, unused func() bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.config.Timeout)
	defer cancel()
	unlock, err := p.clones.changing.Lock(ctx, source.UID)
	if err == nil {
		defer unlock()
		if !unused() {
			return
		}
		err = p.patchClone(ctx, source, "$deleteFromPrimitiveList/finalizers")
	}
	if err != nil && !apierrors.IsNotFound(err) {
		p.logger.Warn("failed to release a claim that was cloned; the next clone of it, or the next start of the provisioner, releases it",
			"namespace", source.Namespace, "claim", source.Name, "error", err)
	}
}

// releaseLeftSources releases the claims that an earlier process protected, and that no claim is waiting to be cloned from.
func (p *Provisioner) releaseLeftSources(ctx context.Context) error {
	claims, err := p.client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list claims that were being cloned: %w", err)
	}
	waiting := map[types.NamespacedName]bool{}
	for i := range claims.Items {
		claim := &claims.Items[i]
		if source := cloneSourceOf(claim); source != "" && claim.Status.Phase != corev1.ClaimBound {
			waiting[types.NamespacedName{Namespace: claim.Namespace, Name: source}] = true
		}
	}
	for i := range claims.Items {
		claim := &claims.Items[i]
		if slices.Contains(claim.Finalizers, finalizerClone) &&
			!waiting[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}] && p.isOwn(ctx, claim) {
			p.releaseClone(ctx, claim, func() bool { return !p.clones.uses(claim.UID) })
		}
	}
	return nil
}

// isOwn returns whether the claim's volume is the driver's: others are released by their own provisioner.
func (p *Provisioner) isOwn(ctx context.Context, claim *corev1.PersistentVolumeClaim) bool {
	volume, err := p.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	return err == nil && volume.Spec.CSI != nil && volume.Spec.CSI.Driver == p.config.Name
}

// cloneSourceOf returns the name of the claim that a claim is to be cloned from, "" if it is not.
func cloneSourceOf(claim *corev1.PersistentVolumeClaim) string {
	switch ref, old := claim.Spec.DataSourceRef, claim.Spec.DataSource; {
	case ref != nil && ref.Kind == claimKind:
		return ref.Name
	case ref == nil && old != nil && old.Kind == claimKind:
		return old.Name
	}
	return ""
}

// patchClone adds or removes the finalizer, whatever else changes.
func (p *Provisioner) patchClone(ctx context.Context, claim *corev1.PersistentVolumeClaim, field string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": claim.UID, field: []string{finalizerClone}}})
	if err != nil {
		return err
	}
	_, err = p.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	return err
}
