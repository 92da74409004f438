package snapshot_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/testlog"
	"github.com/berth-dev/berth/provision/snapshot"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/provision/snapshot/groupapi"
	"github.com/berth-dev/berth/provision/snapshot/groupbinder"
	"github.com/berth-dev/berth/provision/snapshot/grouptaker"
	"github.com/berth-dev/berth/provision/snapshot/taker"
)

// CreateGroup implements grouptaker.Driver.
func (d *fakeDriver) CreateGroup(_ context.Context, request grouptaker.CreateRequest) (grouptaker.Group, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail != nil {
		return grouptaker.Group{}, d.fail
	}
	d.groups = append(d.groups, request)
	d.notReady--
	group := grouptaker.Group{ID: "id-of-" + request.Name, Created: time.Unix(1000, 0), Ready: d.notReady < 0}
	for _, volume := range request.Volumes {
		group.Snapshots = append(group.Snapshots, grouptaker.Member{Volume: volume, Snapshot: taker.Snapshot{
			ID: "snapshot-of-" + volume, Created: group.Created, Size: 1 << 30, Ready: group.Ready}})
	}
	return group, nil
}

// DeleteGroup implements grouptaker.Driver.
func (d *fakeDriver) DeleteGroup(_ context.Context, id string, snapshots []string, _ *corev1.SecretReference) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.deleted = append(append(d.deleted, id), snapshots...)
	return nil
}

// GetGroup implements grouptaker.Driver.
func (d *fakeDriver) GetGroup(_ context.Context, id string, snapshots []string, _ *corev1.SecretReference) (grouptaker.Group, error) {
	group := grouptaker.Group{ID: id, Created: time.Unix(1000, 0), Ready: true}
	for _, snapshot := range snapshots {
		group.Snapshots = append(group.Snapshots, grouptaker.Member{Volume: "volume-of-" + snapshot, Snapshot: taker.Snapshot{ID: snapshot, Ready: true}})
	}
	return group, nil
}

// startGroups is start with the controllers of groups.
func startGroups(t *testing.T, policy api.DeletionPolicy, objects ...runtime.Object) *cluster {
	t.Helper()
	c := start(t, objects...)
	dynamic := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
	logger := testlog.New(t, slog.DiscardHandler)
	bind, err := groupbinder.New(groupbinder.Deps{
		Client: c.core, Groups: c, Snapshots: c, Dynamic: dynamic, Recorder: record.NewFakeRecorder(1000), Logger: logger})
	require.NoError(t, err)
	take, err := grouptaker.New(grouptaker.Deps{
		Client: c.core, Groups: c, Dynamic: dynamic, Driver: c.driver, Recorder: record.NewFakeRecorder(1000), Logger: logger,
	}, grouptaker.Config{DriverName: driverName, ExtraCreateMetadata: true})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 2)
	go func() { ended <- bind.Start(ctx) }()
	go func() { ended <- take.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, <-ended)
	})
	_, err = c.VolumeGroupSnapshotClasses().Create(t.Context(), &groupapi.VolumeGroupSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: "fast", Annotations: map[string]string{snapshot.AnnDefaultGroupClass: "true"}},
		Driver:     driverName, DeletionPolicy: policy, Parameters: map[string]string{
			"speed": "high", "csi.storage.k8s.io/group-snapshotter-secret-name": "${volumegroupsnapshot.name}",
			"csi.storage.k8s.io/group-snapshotter-secret-namespace": "${volumegroupsnapshot.namespace}",
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	return c
}

func (c *cluster) group(t *testing.T, source groupapi.VolumeGroupSnapshotSource) {
	t.Helper()
	_, err := c.VolumeGroupSnapshots("ns").Create(t.Context(), &groupapi.VolumeGroupSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "g"}, Spec: groupapi.VolumeGroupSnapshotSpec{Source: source},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// waitGroup waits until the group fits.
func (c *cluster) waitGroup(t *testing.T, fits func(*groupapi.VolumeGroupSnapshot) bool) *groupapi.VolumeGroupSnapshot {
	t.Helper()
	var last *groupapi.VolumeGroupSnapshot
	require.Eventually(t, func() bool {
		found, err := c.VolumeGroupSnapshots("ns").Get(context.WithoutCancel(t.Context()), "g", metav1.GetOptions{})
		last = found
		return err == nil && fits(found)
	}, time.Minute, 5*time.Millisecond)
	return last
}

func isGroupReady(group *groupapi.VolumeGroupSnapshot) bool {
	return group.Status != nil && ptr.Deref(group.Status.ReadyToUse, false)
}

func groupFailsWith(message string) func(*groupapi.VolumeGroupSnapshot) bool {
	return func(group *groupapi.VolumeGroupSnapshot) bool {
		return group.Status != nil && group.Status.Error != nil && *group.Status.Error.Message == message
	}
}

// removeGroup deletes the group and waits until it is gone.
func (c *cluster) removeGroup(t *testing.T) {
	t.Helper()
	require.NoError(t, c.VolumeGroupSnapshots("ns").Delete(t.Context(), "g", metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		_, err := c.VolumeGroupSnapshots("ns").Get(t.Context(), "g", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, time.Minute, 5*time.Millisecond)
}

func labelled(name string, phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
	c := claim(name, phase)
	c.Labels = map[string]string{"app": "db"}
	return c
}

var ofDB = groupapi.VolumeGroupSnapshotSource{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}}

// TestGroupSnapshot takes one of two claims of three, uses its members, and deletes all.
func TestGroupSnapshot(t *testing.T) {
	c := startGroups(t, api.Delete, labelled("data", corev1.ClaimBound), labelled("log", corev1.ClaimBound), claim("other", corev1.ClaimBound),
		volume("data"), volume("log"), volume("other"))
	c.group(t, ofDB)
	ready := c.waitGroup(t, isGroupReady)
	require.Equal(t, "fast", *ready.Spec.ClassName)
	require.EqualValues(t, 1000, ready.Status.CreationTime.Unix())
	c.driver.set(func() {
		require.Equal(t, []grouptaker.CreateRequest{{
			Name: "groupsnapshot-uid-g", Volumes: []string{"handle-data", "handle-log"}, Secret: &corev1.SecretReference{Namespace: "ns", Name: "g"},
			Parameters: map[string]string{
				"speed": "high", "csi.storage.k8s.io/volumegroupsnapshot/name": "g", "csi.storage.k8s.io/volumegroupsnapshot/namespace": "ns",
				"csi.storage.k8s.io/volumegroupsnapshotcontent/name": "groupsnapcontent-uid-g",
			},
		}}, c.driver.groups)
		require.Empty(t, c.driver.taken, "no snapshot is taken alone")
	})
	for _, name := range []string{"data", "log"} {
		member := c.wait(t, snapshot.MemberName("uid-g", "handle-"+name), snapshot.IsReady)
		require.Equal(t, name, *member.Spec.Source.ClaimName)
		require.Equal(t, "g", *member.Status.GroupName)
		require.Equal(t, "1Gi", member.Status.RestoreSize.String())
		content, err := c.VolumeSnapshotContents().Get(t.Context(), *member.Status.BoundContentName, metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, "snapshot-of-handle-"+name, *content.Status.SnapshotHandle)
		require.Equal(t, "id-of-groupsnapshot-uid-g", *content.Status.GroupHandle)
		require.Equal(t, &corev1.SecretReference{Namespace: "ns", Name: "g"}, snapshot.DeletionSecret(content))
	}
	// One alone is not deleted.
	one := snapshot.MemberName("uid-g", "handle-data")
	require.NoError(t, c.VolumeSnapshots("ns").Delete(t.Context(), one, metav1.DeleteOptions{}))
	c.wait(t, one, failsWith(`it is of VolumeGroupSnapshot "g": delete that, which deletes all of its snapshots`))

	c.removeGroup(t)
	left, err := c.VolumeSnapshots("ns").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, left.Items)
	require.Eventually(t, func() bool {
		contents, err := c.VolumeSnapshotContents().List(t.Context(), metav1.ListOptions{})
		return err == nil && len(contents.Items) == 0
	}, time.Minute, 5*time.Millisecond)
	c.driver.set(func() {
		require.Equal(t, []string{"id-of-groupsnapshot-uid-g", "snapshot-of-handle-data", "snapshot-of-handle-log"}, c.driver.deleted)
	})
}

// keptGroup returns a cluster with a VolumeGroupSnapshot of a group that exists already: an earlier one was taken, and kept.
func keptGroup(t *testing.T) *cluster {
	t.Helper()
	c := startGroups(t, api.Retain, labelled("data", corev1.ClaimBound), volume("data"))
	c.group(t, ofDB)
	c.waitGroup(t, isGroupReady)
	c.removeGroup(t)
	_, err := c.VolumeGroupSnapshotContents().Create(t.Context(), &groupapi.VolumeGroupSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: "kept"},
		Spec: groupapi.VolumeGroupSnapshotContentSpec{
			Driver: driverName, DeletionPolicy: api.Retain, GroupRef: corev1.ObjectReference{Namespace: "ns", Name: "g"},
			Source: groupapi.VolumeGroupSnapshotContentSource{Handles: &groupapi.Handles{
				Group: "id-of-groupsnapshot-uid-g", Snapshots: []string{"snapshot-of-handle-data"}}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.group(t, groupapi.VolumeGroupSnapshotSource{ContentName: ptr.To("kept")})
	c.waitGroup(t, isGroupReady)
	return c
}

// TestGroupSnapshotThatIsKept is bound to another VolumeGroupSnapshot later, whose members a user makes. They end with it, and the driver
// is not asked to delete them alone.
func TestGroupSnapshotThatIsKept(t *testing.T) {
	c := keptGroup(t)
	content, err := c.VolumeGroupSnapshotContents().Get(t.Context(), "kept", metav1.GetOptions{})
	require.NoError(t, err)
	require.True(t, slices.Contains(content.Finalizers, snapshot.FinalizerGroupContent))

	c.existing(t, "kept-data", "snapshot-of-handle-data", "of-user", api.Delete)
	_, err = c.VolumeSnapshots("ns").Create(t.Context(), &api.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: "of-user", Namespace: "ns", UID: "uid-of-user", OwnerReferences: []metav1.OwnerReference{{
			APIVersion: groupapi.GroupVersion.String(), Kind: groupapi.KindGroup, Name: "g", UID: "uid-g"}}},
		Spec: api.VolumeSnapshotSpec{Source: api.VolumeSnapshotSource{ContentName: ptr.To("kept-data")}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.wait(t, "of-user", snapshot.IsReady)
	members, err := c.VolumeSnapshots("ns").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, members.Items, 1, "the user's is the only one")
	c.removeGroup(t)
	c.driver.set(func() { require.Empty(t, c.driver.deleted) })
}

// TestMembersOfAGroupThatExistsAreFound has a user make two VolumeSnapshots of snapshots that exist, of which one is of a group.
func TestMembersOfAGroupThatExistsAreFound(t *testing.T) {
	c := keptGroup(t)
	c.existing(t, "kept-data", "snapshot-of-handle-data", "member", api.Delete)
	c.existing(t, "kept-other", "snapshot-of-nothing-else", "alone", api.Retain)
	c.snapshot(t, "alone", api.VolumeSnapshotSource{ContentName: ptr.To("kept-other")})
	c.wait(t, "alone", snapshot.IsReady)
	c.snapshot(t, "member", api.VolumeSnapshotSource{ContentName: ptr.To("kept-data")})
	c.wait(t, "member", func(s *api.VolumeSnapshot) bool {
		owner := snapshot.GroupOf(s)
		return snapshot.IsReady(s) && owner != nil && owner.UID == "uid-g" && ptr.Deref(s.Status.GroupName, "") == "g" &&
			slices.Contains(s.Finalizers, snapshot.FinalizerMember)
	})
	require.NoError(t, c.VolumeSnapshots("ns").Delete(t.Context(), "member", metav1.DeleteOptions{}))
	c.wait(t, "member", func(s *api.VolumeSnapshot) bool { // with its group only
		return s.Status.Error != nil && strings.Contains(*s.Status.Error.Message, `VolumeGroupSnapshot "g"`)
	})
	c.removeGroup(t)
	c.waitGone(t, "member")
	c.driver.set(func() { require.Empty(t, c.driver.deleted) })
	c.wait(t, "alone", func(s *api.VolumeSnapshot) bool {
		return snapshot.IsReady(s) && snapshot.GroupOf(s) == nil && s.Status.GroupName == nil
	})
}

// memberOf creates a VolumeSnapshot of a group "g".
func (a *fakeAPI) memberOf(t *testing.T, group types.UID, name string, finalizers ...string) {
	t.Helper()
	_, err := a.VolumeSnapshots("ns").Create(t.Context(), &api.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", Finalizers: finalizers, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: groupapi.GroupVersion.String(), Kind: groupapi.KindGroup, Name: "g", UID: group}}},
		Spec: api.VolumeSnapshotSpec{Source: api.VolumeSnapshotSource{ContentName: ptr.To("content-of-" + name)}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

func (a *fakeAPI) waitGone(t *testing.T, name string) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := a.VolumeSnapshots("ns").Get(t.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, time.Minute, 5*time.Millisecond, "VolumeSnapshot %s", name)
}

// TestMembersOfAnEarlierGroupEnd although a group of the same name exists.
func TestMembersOfAnEarlierGroupEnd(t *testing.T) {
	c := startGroups(t, api.Delete, labelled("data", corev1.ClaimBound), volume("data"))
	c.group(t, ofDB)
	c.waitGroup(t, isGroupReady)
	c.memberOf(t, "uid-of-earlier", "orphan", snapshot.FinalizerMember)
	c.waitGone(t, "orphan")
	c.wait(t, snapshot.MemberName("uid-g", "handle-data"), snapshot.IsReady)
}

// TestMembersOfAGroupThatIsNotInTheCacheYetAreKept has the cache of groups not follow the API server.
func TestMembersOfAGroupThatIsNotInTheCacheYetAreKept(t *testing.T) {
	a := newFakeAPI()
	a.PrependWatchReactor(groupapi.ResourceGroups, func(k8stesting.Action) (bool, watch.Interface, error) { return true, watch.NewFake(), nil })
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	bind, err := groupbinder.New(groupbinder.Deps{
		Client: fake.NewClientset(), Groups: a, Snapshots: a, Dynamic: dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()),
		Recorder: record.NewFakeRecorder(1000), Logger: testlog.New(t, slog.DiscardHandler)})
	require.NoError(t, err)
	a.memberOf(t, "uid-of-earlier", "first") // the binder is ready once it is gone
	ended := make(chan error, 1)
	go func() { ended <- bind.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	a.waitGone(t, "first")
	_, err = a.VolumeGroupSnapshots("ns").Create(t.Context(), &groupapi.VolumeGroupSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "g"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	a.memberOf(t, "uid-g", "of-user")
	for _, orphan := range []string{"second", "third"} { // the pass that removes the third follows one that has seen the user's
		a.memberOf(t, "uid-of-earlier", orphan)
		a.waitGone(t, orphan)
	}
	_, err = a.VolumeSnapshots("ns").Get(t.Context(), "of-user", metav1.GetOptions{})
	require.NoError(t, err)
}

// TestGroupSnapshotsSayWhatIsWrong names the claim, the class or the driver's error, and goes on at once when that is over.
func TestGroupSnapshotsSayWhatIsWrong(t *testing.T) {
	c := startGroups(t, api.Delete)
	c.group(t, ofDB)
	c.waitGroup(t, groupFailsWith(`spec.source.selector: no claim of namespace "ns" has labels that match "app=db"`))
	claims := c.core.CoreV1().PersistentVolumeClaims("ns")
	_, err := claims.Create(t.Context(), labelled("data", corev1.ClaimPending), metav1.CreateOptions{})
	require.NoError(t, err)
	c.waitGroup(t, groupFailsWith(`claim "data" is not bound to a volume yet; the snapshot is taken when it is`))
	c.driver.set(func() { c.driver.fail = status.Error(codes.DeadlineExceeded, "slow") })
	_, err = c.core.CoreV1().PersistentVolumes().Create(t.Context(), volume("data"), metav1.CreateOptions{})
	require.NoError(t, err)
	bound := labelled("data", corev1.ClaimBound)
	bound.ResourceVersion = "2"
	_, err = claims.Update(t.Context(), bound, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.waitGroup(t, groupFailsWith("take a group snapshot of 1 volumes: rpc error: code = DeadlineExceeded desc = slow"))
	content, err := c.VolumeGroupSnapshotContents().Get(t.Context(), "groupsnapcontent-uid-g", metav1.GetOptions{})
	require.NoError(t, err)
	require.NotEmpty(t, content.Annotations[snapshot.AnnGroupBeingCreated], "snapshots may be there")
	c.driver.set(func() { c.driver.fail, c.driver.notReady = nil, 2 })
	require.Nil(t, c.waitGroup(t, isGroupReady).Status.Error)
}

// TestSnapshotsOfOtherKindsOfGroupsAreLeftAlone has a VolumeSnapshot that is owned by the VolumeGroupSnapshot of another API group.
func TestSnapshotsOfOtherKindsOfGroupsAreLeftAlone(t *testing.T) {
	c := startGroups(t, api.Delete, claim("data", corev1.ClaimBound), volume("data"))
	c.class(t, api.Delete)
	_, err := c.VolumeSnapshots("ns").Create(t.Context(), &api.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: "other", Namespace: "ns", UID: "uid-other", OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "groupsnapshot.storage.openshift.io/v1beta1", Kind: groupapi.KindGroup, Name: "g", UID: "uid-other-g"}}},
		Spec: api.VolumeSnapshotSpec{Source: api.VolumeSnapshotSource{ClaimName: ptr.To("data")}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.wait(t, "other", snapshot.IsReady)
}
