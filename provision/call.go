package provision

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/timeline"
)

// errNoVolume is the error for a provisioner that returns neither a volume nor an error.
var errNoVolume = errors.New("the provisioner returned neither a volume nor an error")

// callInput is what a call worker reads from a claim's state: it does not hold the state during the call.
type callInput struct {
	attempt
	uid      types.UID
	pvName   string
	mayExist bool
	// unwanted is the volume to delete; nil if one is to be provisioned.
	unwanted *corev1.PersistentVolume
}

// callResult is the result of a call that provisions a volume.
type callResult struct {
	volume *corev1.PersistentVolume
	state  ProvisioningState
	err    error
	node   *corev1.Node
	start  time.Time
}

// runCall calls the provisioner for one claim and stores the result in the claim's state.
func (e *engine) runCall(ctx context.Context, key string) {
	st := e.states.get(types.UID(key))
	if st == nil {
		return
	}
	in, ok := e.startCall(ctx, st)
	if !ok {
		return
	}
	if in.unwanted != nil {
		err := e.callDelete(ctx, in.unwanted)
		e.finishCall(st, func() { e.onCleaned(st, err) })
	} else {
		result := e.provision(ctx, st, in)
		e.finishCall(st, func() { e.onProvisioned(st, in, result) })
	}
	// In any case: changes that came during the call were not acted on.
	e.queues.results.Add(key)
}

// startCall returns what to call the provisioner with, and false if there is no call to make.
func (e *engine) startCall(ctx context.Context, st *claimState) (callInput, bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	defer func() { e.gate.setWaiting(st.uid, st.blocksOnWrites()) }()
	if st.phase != phaseQueued {
		return callInput{}, false // the key is from an earlier state of the claim
	}
	if ctx.Err() != nil {
		st.enter(st.phaseBeforeCall(), e.clock.Now())
		return callInput{}, false
	}
	st.enter(phaseCalling, e.clock.Now())
	in := callInput{
		attempt: st.attempt, uid: st.uid, pvName: volumeNamePrefix + string(st.uid), mayExist: st.mayExist(),
	}
	if st.unsaved != nil {
		in.unwanted = st.unsaved.volume
	} else {
		st.queued.End(nil)
		st.queued = nil
	}
	return in, true
}

// finishCall stores the result of a call, which decides the phase that follows.
func (e *engine) finishCall(st *claimState, store func()) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.enter(st.phaseBeforeCall(), e.clock.Now())
	store()
	e.gate.setWaiting(st.uid, st.blocksOnWrites())
}

// provision finds the node and calls the provisioner. If the provisioner asks for it, the claim is scheduled again.
func (e *engine) provision(ctx context.Context, st *claimState, in callInput) callResult {
	span := e.timeline.Begin(st.ref, timelineOwner, timeline.StageProvisioning, in.pvName)
	result := callResult{start: e.clock.Now()}
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
	if result.state == ProvisioningReschedule && in.mayExist && apierrors.IsNotFound(result.err) {
		result.state = ProvisioningNoChange // the object was missing before the storage was called
	}
	span.End(result.err)
	if result.err == nil || result.state != ProvisioningReschedule {
		return result
	}
	result.state = ProvisioningFinished
	if selectedNode(in.claim) != "" {
		if err := e.clearSelectedNode(ctx, in.claim); err != nil {
			result.err = fmt.Errorf("%w; and failed to unselect the node: %w", result.err, err)
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
		StorageClass:                  class,
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
			state = ProvisioningInBackground // interrupted, so the outcome is unknown
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
	if apierrors.IsNotFound(err) && in.mayExist {
		// The call is repeated although the node does not exist any more; its name is all that is known of it.
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
	}
	return node, err
}

func (e *engine) getNode(ctx context.Context, name string) (*corev1.Node, error) {
	if e.informers.nodes == nil {
		return e.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	}
	obj, ok, err := e.informers.nodes.GetStore().GetByKey(name)
	if err != nil {
		return nil, fmt.Errorf("get node %q: %w", name, err)
	}
	if node, is := obj.(*corev1.Node); ok && is {
		return node, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
}
