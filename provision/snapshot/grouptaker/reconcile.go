package grouptaker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/provision/snapshot"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/provision/snapshot/groupapi"
	"github.com/berth-dev/berth/provision/snapshot/taker"
	"github.com/berth-dev/berth/reconcile"
	"github.com/berth-dev/berth/timeline"
)

// The reasons of events, as external-snapshotter has them.
const (
	reasonCreate = "GroupSnapshotCreationFailed"
	reasonDelete = "GroupSnapshotDeleteError"
	reasonRead   = "GroupSnapshotContentCheckandUpdateFailed"
)

// staleRetry is when a content is reconciled again that others have changed meanwhile.
const staleRetry = 20 * time.Millisecond

// pollMin and pollMax bound the time between two reads of a group that is not ready: no event says when it is.
const pollMin, pollMax = 500 * time.Millisecond, time.Minute

// reconcile brings one content on.
func (t *Taker) reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	content, err := t.contents.Get(ctx, "", key.Name)
	if apierrors.IsNotFound(err) || err == nil && content.Spec.Driver != t.config.DriverName {
		t.forget(key)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("take group snapshot %q: %w", key.Name, err)
	}
	unknown := content.Annotations[snapshot.AnnGroupBeingCreated] != ""
	ready, reason := false, reasonCreate
	switch {
	case mayDelete(content):
		ready, reason = true, reasonDelete
		err = t.delete(ctx, content)
	case isReady(content) && !unknown:
		ready = true
	case content.DeletionTimestamp != nil && !unknown:
		return reconcile.Result{}, nil // its VolumeGroupSnapshot still uses it
	case len(content.Spec.Source.VolumeHandles) > 0:
		ready, err = t.create(ctx, content) // idempotent: it also reads whether the group is ready
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

// mayDelete reports whether a content is to be deleted now: its VolumeGroupSnapshot is being deleted or has never existed, and
// no call has an unknown result.
func mayDelete(content *groupapi.VolumeGroupSnapshotContent) bool {
	switch {
	case content.DeletionTimestamp == nil:
		return false
	case content.Spec.Source.Handles != nil && content.Spec.GroupRef.UID == "":
		return true
	case content.Annotations[snapshot.AnnGroupBeingCreated] != "":
		return false
	}
	return content.Annotations[snapshot.AnnGroupBeingDeleted] != ""
}

func isReady(content *groupapi.VolumeGroupSnapshotContent) bool {
	return content.Status != nil && ptr.Deref(content.Status.ReadyToUse, false)
}

// handlesOf returns the driver's handles of the group and of its snapshots, "" if they are not known yet.
func handlesOf(content *groupapi.VolumeGroupSnapshotContent) (group string, snapshots []string) {
	if source := content.Spec.Source.Handles; source != nil {
		group, snapshots = source.Group, source.Snapshots
	}
	status := content.Status
	if status == nil || status.GroupHandle == nil {
		return group, snapshots
	}
	if len(status.Snapshots) > 0 {
		snapshots = nil
		for _, member := range status.Snapshots {
			snapshots = append(snapshots, member.SnapshotHandle)
		}
	}
	return *status.GroupHandle, snapshots
}

// delete deletes the group, as the policy says, and then releases the content.
func (t *Taker) delete(ctx context.Context, content *groupapi.VolumeGroupSnapshotContent) error {
	if handle, snapshots := handlesOf(content); handle != "" && content.Spec.DeletionPolicy == api.Delete {
		span := t.deps.Timeline.Begin(refOf(content), timelineOwner, "Deleting", handle)
		err := t.deps.Driver.DeleteGroup(ctx, handle, snapshots, snapshot.GroupDeletionSecret(content))
		span.End(err)
		if err != nil {
			return fmt.Errorf("delete group snapshot %q: %w", handle, err)
		}
		t.deps.Logger.Info("deleted group snapshot", "content", content.Name, "groupSnapshot", handle)
	}
	return t.release(ctx, content)
}

// create takes the snapshots of a group of volumes.
func (t *Taker) create(ctx context.Context, content *groupapi.VolumeGroupSnapshotContent) (ready bool, err error) {
	request, err := t.requestOf(ctx, content)
	if err != nil {
		return false, err
	}
	handle, _ := handlesOf(content)
	first := handle == "" && content.Annotations[snapshot.AnnGroupBeingCreated] == ""
	if first {
		if content, err = t.annotate(ctx, content, snapshot.AnnGroupBeingCreated, ptr.To(snapshot.AnnYes)); err != nil {
			return false, err
		}
	}
	span := t.deps.Timeline.Begin(refOf(content), timelineOwner, "Taking", "")
	span.AddWait(controller.QueueWait(ctx))
	taken, err := t.deps.Driver.CreateGroup(ctx, request)
	span.End(err)
	if err != nil {
		if taker.IsFinal(err) || first && !taker.WasSent(err) {
			_, clearErr := t.annotate(ctx, content, snapshot.AnnGroupBeingCreated, nil)
			err = errors.Join(err, clearErr)
		}
		return false, fmt.Errorf("take a group snapshot of %d volumes: %w", len(request.Volumes), err)
	}
	if err := checkGroup(taken, request.Volumes); err != nil {
		return false, fmt.Errorf("take a group snapshot of %d volumes: %w", len(request.Volumes), err)
	}
	if content, err = t.writeStatus(ctx, content, taken); err != nil {
		return false, err
	}
	if _, err = t.annotate(ctx, content, snapshot.AnnGroupBeingCreated, nil); err != nil {
		return false, err
	}
	t.deps.Logger.Info("took group snapshot", "content", content.Name, "groupSnapshot", taken.ID, "ready", taken.Ready)
	return taken.Ready, nil
}

// checkGroup returns an error if the driver did not take one snapshot of each volume.
func checkGroup(taken Group, volumes []string) error {
	if taken.ID == "" {
		return errors.New("the driver reports success, but no group_snapshot_id")
	}
	var sources []string
	for _, member := range taken.Snapshots {
		sources = append(sources, member.Volume)
		if member.ID == "" {
			return fmt.Errorf("the driver reports success, but no snapshot_id of volume %q", member.Volume)
		}
	}
	slices.Sort(sources)
	if want := slices.Sorted(slices.Values(volumes)); !slices.Equal(sources, want) {
		return fmt.Errorf("the driver reports success, but snapshots of volumes %q instead of %q", sources, want)
	}
	return nil
}

// requestOf returns the request for a content.
func (t *Taker) requestOf(ctx context.Context, content *groupapi.VolumeGroupSnapshotContent) (CreateRequest, error) {
	name, ok := snapshot.GroupDriverName(content)
	if !ok {
		return CreateRequest{}, errors.New("spec.volumeGroupSnapshotRef has no uid: the content is not of a VolumeGroupSnapshot")
	}
	request := CreateRequest{Name: name, Volumes: content.Spec.Source.VolumeHandles}
	class, err := t.classOf(ctx, content)
	if err != nil {
		return CreateRequest{}, err
	}
	if class != nil {
		request.Parameters = snapshot.DriverParameters(class.Parameters)
		request.Secret, err = snapshot.ResolveGroupSecret(class, snapshot.SecretGroup, content.Name, content.Spec.GroupRef)
		if err != nil {
			return CreateRequest{}, err
		}
	}
	if t.config.ExtraCreateMetadata {
		request.Parameters = snapshot.AddGroupMetadata(request.Parameters, content)
	}
	return request, nil
}

// read reads a group that a user made known.
func (t *Taker) read(ctx context.Context, content *groupapi.VolumeGroupSnapshotContent) (ready bool, err error) {
	handle, snapshots := handlesOf(content)
	if handle == "" {
		return false, errors.New("spec.source names neither volumes nor a group of snapshots")
	}
	class, err := t.classOf(ctx, content)
	if err != nil {
		return false, err
	}
	var secret *corev1.SecretReference
	if class != nil {
		if secret, err = snapshot.ResolveGroupSecret(class, snapshot.SecretGroupGet, content.Name, content.Spec.GroupRef); err != nil {
			return false, err
		}
	}
	found, err := t.deps.Driver.GetGroup(ctx, handle, snapshots, secret)
	if err != nil {
		return false, fmt.Errorf("read group snapshot %q: %w", handle, err)
	}
	found.ID = handle
	if _, err := t.writeStatus(ctx, content, found); err != nil {
		return false, err
	}
	return found.Ready, nil
}

// classOf returns the class of a content, nil if it names none.
func (t *Taker) classOf(ctx context.Context, content *groupapi.VolumeGroupSnapshotContent) (*groupapi.VolumeGroupSnapshotClass, error) {
	name := ptr.Deref(content.Spec.ClassName, "")
	if name == "" {
		return nil, nil
	}
	class, err := t.deps.Groups.VolumeGroupSnapshotClasses().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("VolumeGroupSnapshotClass %q does not exist", name)
	}
	if err != nil {
		return nil, fmt.Errorf("get VolumeGroupSnapshotClass %q: %w", name, err)
	}
	return class, nil
}

// nextPoll returns when to read a group again that is not ready.
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

// refOf returns the VolumeGroupSnapshot of a content, as timelines name it.
func refOf(content *groupapi.VolumeGroupSnapshotContent) timeline.Ref {
	ref := content.Spec.GroupRef
	return timeline.Ref{Kind: groupapi.KindGroup, Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID}
}
