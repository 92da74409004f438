package provision

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/timeline"
)

// errNoVolume is what a provisioner's answer without volume and without error is taken for.
var errNoVolume = errors.New("the provisioner returned neither a volume nor an error")

// callInput is what a call worker takes out of a claim's state: it calls without holding the state.
type callInput struct {
	uid     types.UID
	pvName  string
	claim   *corev1.PersistentVolumeClaim
	class   *storagev1.StorageClass
	node    *corev1.Node
	outcome outcome
	// cleanup is the volume to delete again; nil if one is to be provisioned.
	cleanup *corev1.PersistentVolume
}

// callResult is what a Provision call came to.
type callResult struct {
	volume *corev1.PersistentVolume
	state  ProvisioningState
	err    error
	node   *corev1.Node
	began  time.Time
}

// runCall calls the provisioner for one claim and leaves the result in the claim's state.
func (e *engine) runCall(ctx context.Context, key string) {
	st := e.states.get(types.UID(key))
	if st == nil {
		return
	}
	in, ok := e.startCall(ctx, st)
	if !ok {
		return
	}
	if in.cleanup != nil {
		err := e.callDelete(ctx, in.cleanup)
		e.finishCall(st, func() { e.onVolumeCleaned(st, err) })
	} else {
		result := e.provision(ctx, st, in)
		e.finishCall(st, func() { e.onProvisioned(st, in, result) })
	}
	// Look again in any case: something may have changed during the call, and was left alone then.
	e.saves.Add(key)
}

// finishCall gives the claim back, with what the call came to.
func (e *engine) finishCall(st *claimState, takeIn func()) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.calling, st.called = false, false
	takeIn()
	e.gate.setWaiting(st.uid, st.blocksOnWrites())
}

func (e *engine) startCall(ctx context.Context, st *claimState) (callInput, bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	defer func() { e.gate.setWaiting(st.uid, st.blocksOnWrites()) }()
	if !st.calling || st.called || st.forgotten {
		return callInput{}, false // the key is from an earlier state of the claim
	}
	if ctx.Err() != nil {
		st.calling = false
		return callInput{}, false
	}
	st.called = true
	in := callInput{
		uid: st.uid, pvName: volumeNamePrefix + string(st.uid),
		claim: st.claim, class: st.class, node: st.node, outcome: st.outcome,
	}
	if st.save != nil {
		in.cleanup = st.save.volume
	} else {
		st.queued.End(nil)
		st.queued = nil
	}
	return in, true
}

// provision finds the node, calls the provisioner and, if asked to, has the claim scheduled again.
func (e *engine) provision(ctx context.Context, st *claimState, in callInput) callResult {
	span := e.timeline.Begin(st.ref, timelineOwner, timeline.StageProvisioning, in.pvName)
	result := callResult{began: e.clock.Now()}
	result.node, result.err = e.nodeFor(ctx, in)
	switch {
	case result.err == nil:
		e.events.Event(in.claim, corev1.EventTypeNormal, reasonProvisioning, fmt.Sprintf(
			"External provisioner is provisioning volume for claim %q", in.claim.Namespace+"/"+in.claim.Name))
		result.volume, result.state, result.err = e.callProvision(ctx, e.volumeOptions(in, result.node))
	case apierrors.IsNotFound(result.err):
		result.state = ProvisioningReschedule
		result.err = fmt.Errorf("failed to get target node: %w", result.err)
	default:
		result.state = ProvisioningNoChange
		result.err = fmt.Errorf("failed to get target node: %w", result.err)
	}
	span.End(result.err)
	if result.err == nil || result.state != ProvisioningReschedule {
		return result
	}
	result.state = ProvisioningFinished
	if selectedNode(in.claim) != "" {
		if err := e.clearSelectedNode(ctx, in.claim); err != nil {
			result.err = fmt.Errorf("%w; and cannot have another node selected: %w", result.err, err)
		} else {
			result.state = ProvisioningReschedule
		}
	}
	return result
}

func (e *engine) volumeOptions(in callInput, node *corev1.Node) VolumeOptions {
	class := in.class.DeepCopy()
	opts := VolumeOptions{
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
		PVName:                        in.pvName,
		MountOptions:                  class.MountOptions,
		PVC:                           in.claim.DeepCopy(),
		Parameters:                    class.Parameters,
		AllowedTopologies:             class.AllowedTopologies,
	}
	if class.ReclaimPolicy != nil {
		opts.PersistentVolumeReclaimPolicy = *class.ReclaimPolicy
	}
	if node != nil {
		opts.SelectedNode = node.DeepCopy()
	}
	return opts
}

// callProvision calls the richest of the provisioner's methods.
func (e *engine) callProvision(
	ctx context.Context, opts VolumeOptions,
) (volume *corev1.PersistentVolume, state ProvisioningState, err error) {
	switch p := e.provisioner.(type) {
	case ProvisionerContext:
		volume, state, err = p.ProvisionContext(ctx, opts)
		if err != nil && ctx.Err() != nil {
			state = ProvisioningInBackground // cut short: nobody knows
		}
	case ProvisionerExt:
		volume, state, err = p.ProvisionExt(opts)
	default:
		volume, err = e.provisioner.Provision(opts)
		state = ProvisioningFinished
	}
	if err == nil && volume == nil {
		err = errNoVolume
	}
	return volume, state, err
}

func (e *engine) callDelete(ctx context.Context, volume *corev1.PersistentVolume) error {
	if p, ok := e.provisioner.(DeleterContext); ok {
		return p.DeleteContext(ctx, volume.DeepCopy())
	}
	return e.provisioner.Delete(volume.DeepCopy())
}

// nodeFor returns the claim's selected node, nil if it has none.
func (e *engine) nodeFor(ctx context.Context, in callInput) (*corev1.Node, error) {
	name := selectedNode(in.claim)
	if name == "" {
		return nil, nil
	}
	if in.node != nil {
		return in.node, nil
	}
	node, err := e.getNode(ctx, name)
	if apierrors.IsNotFound(err) && in.outcome == outcomeUnknown {
		// What was begun must be ended although the node is gone; the name is all that is left of it.
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
	}
	return node, err
}

func (e *engine) getNode(ctx context.Context, name string) (*corev1.Node, error) {
	if e.nodes == nil {
		return e.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	}
	obj, ok, err := e.nodes.GetByKey(name)
	if err != nil {
		return nil, fmt.Errorf("look up node %q: %w", name, err)
	}
	if node, is := obj.(*corev1.Node); ok && is {
		return node, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
}
