package taker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/provision/snapshot"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/reconcile"
	"github.com/berth-dev/berth/timeline"
)

const (
	reasonCreate = "SnapshotCreationFailed"
	reasonDelete = "SnapshotDeleteError"
	reasonRead   = "SnapshotContentCheckandUpdateFailed"
)

// staleRetry is when a content is reconciled again that others have changed meanwhile.
const staleRetry = 20 * time.Millisecond

// pollMin and pollMax bound the time between two reads of a snapshot that is not ready: no event says when it is.
const pollMin, pollMax = 500 * time.Millisecond, time.Minute

// reconcile brings one content on.
func (t *Taker) reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	content, err := t.contents.Get(ctx, "", key.Name)
	if apierrors.IsNotFound(err) || err == nil && content.Spec.Driver != t.config.DriverName {
		t.forget(key)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("take snapshot %q: %w", key.Name, err)
	}
	ready := false
	reason := reasonCreate
	switch {
	case mayDelete(content):
		ready, reason = true, reasonDelete
		err = t.delete(ctx, content)
	case isReady(content) && content.Annotations[snapshot.AnnBeingCreated] == "":
		ready = true
	case content.DeletionTimestamp != nil && content.Annotations[snapshot.AnnBeingCreated] == "":
		return reconcile.Result{}, nil // its VolumeSnapshot still uses it
	case snapshot.IsMember(content):
		if handleOf(content) == "" {
			return reconcile.Result{}, nil // the group's controller writes it
		}
		reason = reasonRead
		ready, err = t.read(ctx, content)
	case content.Spec.Source.VolumeHandle != nil:
		ready, err = t.create(ctx, content) // idempotent: it also reads whether the snapshot is ready
		if err == nil && content.DeletionTimestamp != nil {
			return t.reconcile(ctx, key) // the result is known now
		}
	default:
		reason = reasonRead
		ready, err = t.read(ctx, content)
	}
	switch {
	case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		return reconcile.Result{RequeueAfter: staleRetry}, nil
	case err != nil && ctx.Err() == nil:
		return reconcile.Result{}, t.report(ctx, content, reason, err)
	case err != nil:
		return reconcile.Result{}, err
	case !ready:
		return reconcile.Result{RequeueAfter: t.nextPoll(key)}, nil
	}
	t.forget(key)
	return reconcile.Result{}, nil
}

// mayDelete reports whether a content is to be deleted now: its VolumeSnapshot is being deleted or has never existed, and no
// call has an unknown result.
func mayDelete(content *api.VolumeSnapshotContent) bool {
	switch {
	case content.DeletionTimestamp == nil:
		return false
	case content.Spec.Source.SnapshotHandle != nil && content.Spec.SnapshotRef.UID == "":
		return true
	case content.Annotations[snapshot.AnnBeingCreated] != "":
		return false
	}
	return content.Annotations[snapshot.AnnBeingDeleted] != ""
}

func isReady(content *api.VolumeSnapshotContent) bool {
	return content.Status != nil && ptr.Deref(content.Status.ReadyToUse, false)
}

// handleOf returns the driver's handle of the snapshot, "" if it is not known yet.
func handleOf(content *api.VolumeSnapshotContent) string {
	if content.Status != nil && content.Status.SnapshotHandle != nil {
		return *content.Status.SnapshotHandle
	}
	return ptr.Deref(content.Spec.Source.SnapshotHandle, "")
}

// delete deletes the snapshot, as the policy says, and then releases the content. A snapshot of a group is deleted with it.
func (t *Taker) delete(ctx context.Context, content *api.VolumeSnapshotContent) error {
	if handle := handleOf(content); handle != "" && content.Spec.DeletionPolicy == api.Delete && !snapshot.IsMember(content) {
		span := t.deps.Timeline.Begin(refOf(content), timelineOwner, "Deleting", handle)
		err := t.deps.Driver.DeleteSnapshot(ctx, handle, snapshot.DeletionSecret(content))
		span.End(err)
		if err != nil {
			return fmt.Errorf("delete snapshot %q: %w", handle, err)
		}
		t.deps.Logger.Info("deleted snapshot", "content", content.Name, "snapshot", handle)
	}
	return t.release(ctx, content)
}

// create takes the snapshot of a volume.
func (t *Taker) create(ctx context.Context, content *api.VolumeSnapshotContent) (ready bool, err error) {
	name, ok := snapshot.DriverName(content)
	if !ok || content.Spec.Source.VolumeHandle == nil {
		return false, errors.New("spec.volumeSnapshotRef has no uid: the content is not of a VolumeSnapshot")
	}
	request := CreateRequest{Name: name, Volume: *content.Spec.Source.VolumeHandle}
	class, err := t.classOf(ctx, content)
	if err != nil {
		return false, err
	}
	if class != nil {
		request.Parameters = snapshot.DriverParameters(class.Parameters)
		if request.Secret, err = snapshot.ResolveSecret(class, snapshot.SecretSnapshotter, content.Name, content.Spec.SnapshotRef); err != nil {
			return false, err
		}
	}
	if t.config.ExtraCreateMetadata {
		request.Parameters = snapshot.AddMetadata(request.Parameters, content)
	}
	first := handleOf(content) == "" && content.Annotations[snapshot.AnnBeingCreated] == ""
	if first {
		if content, err = t.annotate(ctx, content, snapshot.AnnBeingCreated, ptr.To(snapshot.AnnYes)); err != nil {
			return false, err
		}
	}
	span := t.deps.Timeline.Begin(refOf(content), timelineOwner, "Taking", "")
	span.AddWait(controller.QueueWait(ctx))
	taken, err := t.deps.Driver.CreateSnapshot(ctx, request)
	span.End(err)
	if err != nil {
		if IsFinal(err) || first && !WasSent(err) {
			_, clearErr := t.annotate(ctx, content, snapshot.AnnBeingCreated, nil)
			err = errors.Join(err, clearErr)
		}
		return false, fmt.Errorf("take a snapshot of volume %q: %w", request.Volume, err)
	}
	if taken.ID == "" {
		return false, fmt.Errorf("take a snapshot of volume %q: the driver reports success, but no snapshot_id", request.Volume)
	}
	if content, err = t.writeStatus(ctx, content, taken); err != nil {
		return false, err
	}
	if _, err = t.annotate(ctx, content, snapshot.AnnBeingCreated, nil); err != nil {
		return false, err
	}
	t.deps.Logger.Info("took snapshot", "content", content.Name, "snapshot", taken.ID, "ready", taken.Ready)
	return taken.Ready, nil
}

// read reads a snapshot that a user made known.
func (t *Taker) read(ctx context.Context, content *api.VolumeSnapshotContent) (ready bool, err error) {
	handle := handleOf(content)
	if handle == "" {
		return false, errors.New("spec.source names neither a volume nor a snapshot")
	}
	class, err := t.classOf(ctx, content)
	if err != nil {
		return false, err
	}
	var secret *corev1.SecretReference
	if snapshot.IsMember(content) {
		secret = snapshot.DeletionSecret(content) // it names no class
	}
	if class != nil {
		if secret, err = snapshot.ResolveSecret(class, snapshot.SecretList, content.Name, content.Spec.SnapshotRef); err != nil {
			return false, err
		}
	}
	found, err := t.deps.Driver.GetSnapshot(ctx, handle, secret)
	if err != nil {
		return false, fmt.Errorf("read snapshot %q: %w", handle, err)
	}
	found.ID = handle
	if _, err := t.writeStatus(ctx, content, found); err != nil {
		return false, err
	}
	return found.Ready, nil
}

// classOf returns the class of a content, nil if it names none.
func (t *Taker) classOf(ctx context.Context, content *api.VolumeSnapshotContent) (*api.VolumeSnapshotClass, error) {
	name := ptr.Deref(content.Spec.ClassName, "")
	if name == "" {
		return nil, nil
	}
	class, err := t.deps.Snapshots.VolumeSnapshotClasses().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("VolumeSnapshotClass %q does not exist", name)
	}
	if err != nil {
		return nil, fmt.Errorf("get VolumeSnapshotClass %q: %w", name, err)
	}
	return class, nil
}

// WasSent reports whether the driver may have got the call that failed.
func WasSent(err error) bool {
	_, ok := status.FromError(err)
	return ok
}

// IsFinal reports whether after this error of CreateSnapshot no snapshot is being taken, as the CSI specification has it. An
// error without a status was not sent, or a result that could not be understood.
func IsFinal(err error) bool {
	if errors.Is(err, ErrUnsupported) {
		return true
	}
	reported, ok := status.FromError(err)
	if !ok {
		return false
	}
	switch reported.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return false
	}
	return true
}

// nextPoll returns when to read a snapshot again that is not ready.
func (t *Taker) nextPoll(key reconcile.Request) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	wait := min(pollMin<<min(t.polls[key], 16), pollMax)
	t.polls[key]++
	return wait
}

func (t *Taker) forget(key reconcile.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.polls, key)
}

// refOf returns the VolumeSnapshot of a content, as timelines name it.
func refOf(content *api.VolumeSnapshotContent) timeline.Ref {
	ref := content.Spec.SnapshotRef
	return timeline.Ref{Kind: api.KindSnapshot, Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID}
}
