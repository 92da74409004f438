package csi

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/listwatch"
)

// sourceWaitLimit is how long the source of a claim is watched after the last try to provision the claim. It is above the
// time between two tries, so that only the watches of claims that are gone end by it.
const sourceWaitLimit = time.Hour

// sourceWaits watches the sources of claims that cannot be provisioned because their source does not exist or is not ready, or because
// the driver has no node. It is safe for concurrent use.
type sourceWaits struct {
	mu sync.Mutex // guards all below
	// start begins a watch; nil while NotifyProvisionable does not run.
	start func(sourceKey)
	waits map[sourceKey]*sourceWait
}

// sourceKey names a source. kind is claimKind, snapshotKind or, for the first node of the driver, nodeKind.
type sourceKey struct{ kind, namespace, name string }

// nodeKind is the kind of what the kubelet writes when the driver runs on its node.
const nodeKind = "CSINode"

// sourceWait has the claims that wait for one source.
type sourceWait struct {
	claims map[types.UID]struct{}
	// renewed is set if a claim was tried again since the watch began.
	renewed bool
}

func newSourceWaits() *sourceWaits { return &sourceWaits{waits: map[sourceKey]*sourceWait{}} }

// wait notifies the claim when the source is ready.
func (w *sourceWaits) wait(claim types.UID, source sourceKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.start == nil {
		return
	}
	wait := w.waits[source]
	if wait == nil {
		wait = &sourceWait{claims: map[types.UID]struct{}{}}
		w.waits[source] = wait
		defer w.start(source)
	}
	wait.claims[claim] = struct{}{}
	wait.renewed = true
}

// expired returns whether no claim waits for a source any more, and forgets the source then.
func (w *sourceWaits) expired(source sourceKey) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if wait := w.waits[source]; wait.renewed {
		wait.renewed = false
		return false
	}
	delete(w.waits, source)
	return true
}

// done returns the claims that waited for a source.
func (w *sourceWaits) done(source sourceKey) map[types.UID]struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	claims := w.waits[source].claims
	delete(w.waits, source)
	return claims
}

// NotifyProvisionable implements provision.ClaimNotifier: a claim whose source did not exist or was not ready is notified when
// it is, and one for whose driver no node was known when there is one. The sources are watched one by one, and only while a claim waits.
func (p *Provisioner) NotifyProvisionable(ctx context.Context, notify func(claim types.UID)) error {
	var watching sync.WaitGroup
	p.waits.mu.Lock()
	p.waits.start = func(source sourceKey) {
		watching.Go(contain.Guard("csi.watchSource", source.namespace+"/"+source.name, func() { p.watchSource(ctx, source, notify) }))
	}
	p.waits.mu.Unlock()
	if err := p.releaseLeftSources(ctx); err != nil && ctx.Err() == nil {
		p.logger.Warn("claims that were being cloned when the provisioner ended stay protected until its next start", "error", err)
	}
	<-ctx.Done()
	p.waits.mu.Lock()
	p.waits.start = nil
	p.waits.mu.Unlock()
	watching.Wait()
	return nil
}

// watchSource notifies the claims that wait for a source when it is ready.
func (p *Provisioner) watchSource(ctx context.Context, source sourceKey, notify func(types.UID)) {
	for {
		watching, cancel := context.WithTimeout(ctx, sourceWaitLimit)
		err := p.untilReady(watching, source)
		expired := watching.Err() != nil
		cancel()
		if expired && ctx.Err() == nil && !p.waits.expired(source) {
			continue // a claim was tried again meanwhile
		}
		if expired {
			return
		}
		if err != nil {
			p.logger.Warn("cannot watch the source of a claim; the claim is retried after its backoff",
				"kind", source.kind, "namespace", source.namespace, "source", source.name, "error", err)
		}
		for claim := range p.waits.done(source) {
			if err == nil {
				notify(claim)
			}
		}
		return
	}
}

// untilReady waits until volumes can be created from the source.
func (p *Provisioner) untilReady(ctx context.Context, source sourceKey) error {
	switch source.kind {
	case nodeKind:
		return listwatch.Until(ctx, listwatch.New(p.client.StorageV1().CSINodes(), p.client), &storagev1.CSINode{}, func(node *storagev1.CSINode) bool {
			keys, _ := topologyKeys(node, p.config.Name)
			return len(keys) > 0
		})
	case snapshotKind:
		return listwatch.UntilNamed(ctx, p.dynamic.Resource(snapshots).Namespace(source.namespace), p.dynamic, source.name,
			&unstructured.Unstructured{}, isSnapshotReady)
	}
	return listwatch.UntilNamed(ctx, p.client.CoreV1().PersistentVolumeClaims(source.namespace), p.client, source.name,
		&corev1.PersistentVolumeClaim{}, isClaimBound)
}

// isSnapshotReady returns whether volumes of new claims can be created from a VolumeSnapshot.
func isSnapshotReady(snapshot *unstructured.Unstructured) bool {
	return isReadyToUse(snapshot) && snapshot.GetDeletionTimestamp() == nil
}

// isReadyToUse returns whether a VolumeSnapshot is bound and complete.
func isReadyToUse(snapshot *unstructured.Unstructured) bool {
	ready, _, _ := unstructured.NestedBool(snapshot.Object, "status", "readyToUse") // of another type: not ready
	content, _, _ := unstructured.NestedString(snapshot.Object, "status", "boundVolumeSnapshotContentName")
	return ready && content != ""
}

// isClaimBound returns whether a claim has a volume that can be cloned.
func isClaimBound(claim *corev1.PersistentVolumeClaim) bool {
	return claim.DeletionTimestamp == nil && claim.Status.Phase == corev1.ClaimBound && claim.Spec.VolumeName != ""
}
