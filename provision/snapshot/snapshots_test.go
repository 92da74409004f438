package snapshot_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/testlog"
	"github.com/berth-dev/berth/provision/snapshot"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/provision/snapshot/binder"
	"github.com/berth-dev/berth/provision/snapshot/grouptaker"
	"github.com/berth-dev/berth/provision/snapshot/taker"
)

const driverName = "disk.example.com"

// fakeDriver is a driver's storage: snapshots by name.
type fakeDriver struct {
	mu       sync.Mutex // guards all below
	taken    map[string]taker.CreateRequest
	groups   []grouptaker.CreateRequest
	deleted  []string
	fail     error
	notReady int // so many calls report a snapshot that is not ready
}

func (d *fakeDriver) CreateSnapshot(_ context.Context, request taker.CreateRequest) (taker.Snapshot, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail != nil {
		return taker.Snapshot{}, d.fail
	}
	d.taken[request.Name] = request
	d.notReady--
	return taker.Snapshot{ID: "id-of-" + request.Name, Created: time.Unix(1000, 5), Size: 1 << 30, Ready: d.notReady < 0}, nil
}

func (d *fakeDriver) DeleteSnapshot(_ context.Context, id string, _ *corev1.SecretReference) error {
	if group := groupOfSnapshot(id); group != "" {
		return status.Errorf(codes.FailedPrecondition, "it is of group %s", group)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.deleted = append(d.deleted, id)
	return nil
}

func (d *fakeDriver) GetSnapshot(_ context.Context, id string, _ *corev1.SecretReference) (taker.Snapshot, error) {
	return taker.Snapshot{ID: id, Ready: true, Size: 1 << 20, Group: groupOfSnapshot(id)}, nil
}

// groupOfSnapshot returns the group of a snapshot that the driver took with a group, "" if it took it alone.
func groupOfSnapshot(id string) string {
	if strings.HasPrefix(id, "snapshot-of-handle-") {
		return "id-of-groupsnapshot-uid-g"
	}
	return ""
}

func (d *fakeDriver) set(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
}

// cluster runs both controllers on an API server in memory.
type cluster struct {
	*fakeAPI
	core   *fake.Clientset
	driver *fakeDriver
	events *record.FakeRecorder
}

func start(t *testing.T, objects ...runtime.Object) *cluster {
	t.Helper()
	c := &cluster{
		fakeAPI: newFakeAPI(), core: fake.NewClientset(objects...), driver: &fakeDriver{taken: map[string]taker.CreateRequest{}},
		events: record.NewFakeRecorder(1000),
	}
	dynamic := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
	logger := testlog.New(t, slog.DiscardHandler)
	bind, err := binder.New(binder.Deps{Client: c.core, Snapshots: c, Dynamic: dynamic, Recorder: c.events, Logger: logger}, binder.Config{})
	require.NoError(t, err)
	take, err := taker.New(taker.Deps{
		Client: c.core, Snapshots: c, Dynamic: dynamic, Driver: c.driver, Recorder: record.NewFakeRecorder(1000), Logger: logger,
	}, taker.Config{DriverName: driverName, ExtraCreateMetadata: true})
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
	return c
}

func (c *cluster) class(t *testing.T, policy api.DeletionPolicy) {
	t.Helper()
	_, err := c.VolumeSnapshotClasses().Create(t.Context(), &api.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: "fast", Annotations: map[string]string{snapshot.AnnDefaultClass: "true"}},
		Driver:     driverName, DeletionPolicy: policy, Parameters: map[string]string{
			"speed": "high", "csi.storage.k8s.io/snapshotter-secret-name": "${volumesnapshot.name}",
			"csi.storage.k8s.io/snapshotter-secret-namespace": "${volumesnapshot.namespace}",
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

func (c *cluster) snapshot(t *testing.T, name string, source api.VolumeSnapshotSource) {
	t.Helper()
	_, err := c.VolumeSnapshots("ns").Create(t.Context(), &api.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: api.VolumeSnapshotSpec{Source: source},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// remove deletes a VolumeSnapshot and waits until it is gone.
func (c *cluster) remove(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, c.VolumeSnapshots("ns").Delete(t.Context(), name, metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		_, err := c.VolumeSnapshots("ns").Get(t.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, time.Minute, 5*time.Millisecond)
}

// waitEvent waits for the next event of the binder with that text.
func (c *cluster) waitEvent(t *testing.T, text string) {
	t.Helper()
	for deadline := time.After(time.Minute); ; {
		select {
		case event := <-c.events.Events:
			if event == text {
				return
			}
		case <-deadline:
			require.Fail(t, "no event", text)
		}
	}
}

func ofClaim(name string) api.VolumeSnapshotSource { return api.VolumeSnapshotSource{ClaimName: &name} }

func failsWith(message string) func(*api.VolumeSnapshot) bool {
	return func(s *api.VolumeSnapshot) bool {
		return s.Status != nil && s.Status.Error != nil && *s.Status.Error.Message == message
	}
}

// TestSnapshotOfAClaim takes one with the default class, metadata and a Secret, and deletes it.
func TestSnapshotOfAClaim(t *testing.T) {
	c := start(t, claim("data", corev1.ClaimBound), volume("data"))
	c.class(t, api.Delete)
	c.snapshot(t, "s", ofClaim("data"))
	ready := c.wait(t, "s", snapshot.IsReady)
	require.Equal(t, "fast", *ready.Spec.ClassName)
	require.EqualValues(t, 1000, ready.Status.CreationTime.Unix())
	require.Equal(t, "1Gi", ready.Status.RestoreSize.String())
	c.driver.set(func() {
		require.Equal(t, map[string]taker.CreateRequest{"snapshot-uid-s": {
			Name: "snapshot-uid-s", Volume: "handle-data", Secret: &corev1.SecretReference{Namespace: "ns", Name: "s"},
			Parameters: map[string]string{
				"speed": "high", "csi.storage.k8s.io/volumesnapshot/name": "s", "csi.storage.k8s.io/volumesnapshot/namespace": "ns",
				"csi.storage.k8s.io/volumesnapshotcontent/name": "snapcontent-uid-s",
			},
		}}, c.driver.taken)
	})
	content, err := c.VolumeSnapshotContents().Get(t.Context(), "snapcontent-uid-s", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, &corev1.SecretReference{Namespace: "ns", Name: "s"}, snapshot.DeletionSecret(content))
	require.Eventually(t, func() bool { // the claim is held only as long as the snapshot is being taken
		source, err := c.core.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "data", metav1.GetOptions{})
		return err == nil && !slices.Contains(source.Finalizers, snapshot.FinalizerClaim)
	}, time.Minute, 5*time.Millisecond)

	c.remove(t, "s")
	_, err = c.VolumeSnapshotContents().Get(t.Context(), "snapcontent-uid-s", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), err)
	c.driver.set(func() { require.Equal(t, []string{"id-of-snapshot-uid-s"}, c.driver.deleted) })
}

// existing creates the content of a snapshot that exists already, for the VolumeSnapshot of that name.
func (c *cluster) existing(t *testing.T, content, handle, forSnapshot string, policy api.DeletionPolicy) {
	t.Helper()
	_, err := c.VolumeSnapshotContents().Create(t.Context(), &api.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: content},
		Spec: api.VolumeSnapshotContentSpec{
			Driver: driverName, DeletionPolicy: policy, SnapshotRef: corev1.ObjectReference{Namespace: "ns", Name: forSnapshot},
			Source: api.VolumeSnapshotContentSource{SnapshotHandle: &handle},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// TestSnapshotThatIsKept is bound to another VolumeSnapshot later.
func TestSnapshotThatIsKept(t *testing.T) {
	c := start(t, claim("data", corev1.ClaimBound), volume("data"))
	c.class(t, api.Retain)
	c.snapshot(t, "s", ofClaim("data"))
	c.wait(t, "s", snapshot.IsReady)
	c.remove(t, "s")
	_, err := c.VolumeSnapshotContents().Get(t.Context(), "snapcontent-uid-s", metav1.GetOptions{})
	require.NoError(t, err)
	c.existing(t, "kept", "id-of-snapshot-uid-s", "again", api.Retain)
	c.snapshot(t, "again", api.VolumeSnapshotSource{ContentName: ptr.To("kept")})
	again := c.wait(t, "again", snapshot.IsReady)
	require.Equal(t, "1Mi", again.Status.RestoreSize.String())
	require.NotNil(t, again.Status.CreationTime, "also if the driver does not say when it was")
	c.remove(t, "again")
	c.driver.set(func() { require.Empty(t, c.driver.deleted) })
}

// TestSnapshotsWaitForEvents creates what they wait for one after the other.
func TestSnapshotsWaitForEvents(t *testing.T) {
	c := start(t)
	c.snapshot(t, "s", ofClaim("data"))
	c.wait(t, "s", failsWith(`claim "data", which spec.source names, does not exist`))
	claims := c.core.CoreV1().PersistentVolumeClaims("ns")
	_, err := claims.Create(t.Context(), claim("data", corev1.ClaimPending), metav1.CreateOptions{})
	require.NoError(t, err)
	c.wait(t, "s", failsWith(`claim "data" is not bound to a volume yet; the snapshot is taken when it is`))
	_, err = c.core.CoreV1().PersistentVolumes().Create(t.Context(), volume("data"), metav1.CreateOptions{})
	require.NoError(t, err)
	bound := claim("data", corev1.ClaimBound)
	bound.ResourceVersion = "2"
	_, err = claims.Update(t.Context(), bound, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.wait(t, "s", failsWith(
		`cannot find default snapshot class: spec.volumeSnapshotClassName names none, and driver "disk.example.com" has no default one`))
	c.class(t, api.Delete)
	require.Nil(t, c.wait(t, "s", snapshot.IsReady).Status.Error)
}

// TestSnapshotOfAClaimThatWasDeletedMeanwhile has a claim that an earlier process held for the snapshot, before it ended or the API server
// failed. Only the end of the snapshot releases the claim.
func TestSnapshotOfAClaimThatWasDeletedMeanwhile(t *testing.T) {
	held := claim("data", corev1.ClaimBound)
	held.DeletionTimestamp, held.Finalizers = ptr.To(metav1.Now()), []string{"example.com/other", snapshot.FinalizerClaim}
	c := start(t, held, volume("data"))
	c.class(t, api.Delete)
	c.snapshot(t, "s", ofClaim("data"))
	c.wait(t, "s", snapshot.IsReady)
	require.Eventually(t, func() bool {
		source, err := c.core.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "data", metav1.GetOptions{})
		return err == nil && slices.Equal(source.Finalizers, []string{"example.com/other"})
	}, time.Minute, 5*time.Millisecond)

	c.snapshot(t, "late", ofClaim("data"))
	c.wait(t, "late", failsWith(`claim "data" is being deleted: no snapshot of it can be taken any more`))
}

// TestSnapshotIsKeptWhileVolumesAreCreatedFromIt has a claim that is waiting for its volume, and then one that is being deleted as well: its
// provisioner keeps it because the driver may still copy the snapshot.
func TestSnapshotIsKeptWhileVolumesAreCreatedFromIt(t *testing.T) {
	c := start(t, claim("data", corev1.ClaimBound), volume("data"))
	c.class(t, api.Delete)
	c.snapshot(t, "s", ofClaim("data"))
	c.wait(t, "s", snapshot.IsReady)
	restored := claim("restored", corev1.ClaimPending)
	restored.Spec.VolumeName = ""
	restored.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: ptr.To(api.GroupName), Kind: api.KindSnapshot, Name: "s"}
	claims := c.core.CoreV1().PersistentVolumeClaims("ns")
	_, err := claims.Create(t.Context(), restored, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, c.VolumeSnapshots("ns").Delete(t.Context(), "s", metav1.DeleteOptions{}))
	const pending = "Warning SnapshotDeletePending claim restored is being created from the snapshot"
	c.waitEvent(t, pending)

	restored.DeletionTimestamp, restored.Finalizers, restored.ResourceVersion = ptr.To(metav1.Now()), []string{"example.com/intent"}, "2"
	_, err = claims.Update(t.Context(), restored, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.waitEvent(t, pending)
	c.driver.set(func() { require.Empty(t, c.driver.deleted) })
	require.NoError(t, claims.Delete(t.Context(), "restored", metav1.DeleteOptions{}))
	c.waitGone(t, "s")
	c.driver.set(func() { require.Equal(t, []string{"id-of-snapshot-uid-s"}, c.driver.deleted) })
}

// TestFailedSnapshotIsReportedAndRetried has errors after which nothing is known, errors that are final, and a snapshot
// that is not ready at once.
func TestFailedSnapshotIsReportedAndRetried(t *testing.T) {
	c := start(t, claim("data", corev1.ClaimBound), volume("data"))
	marked := func() bool {
		content, err := c.VolumeSnapshotContents().Get(t.Context(), "snapcontent-uid-s", metav1.GetOptions{})
		return err == nil && content.Annotations[snapshot.AnnBeingCreated] != ""
	}
	c.driver.fail = status.Error(codes.DeadlineExceeded, "slow")
	c.class(t, api.Delete)
	c.snapshot(t, "s", ofClaim("data"))
	const prefix = `take a snapshot of volume "handle-data": rpc error: `
	c.wait(t, "s", failsWith(prefix+"code = DeadlineExceeded desc = slow"))
	require.True(t, marked(), "a snapshot may be there")
	c.driver.set(func() { c.driver.fail = status.Error(codes.InvalidArgument, "bad") })
	c.wait(t, "s", failsWith(prefix+"code = InvalidArgument desc = bad"))
	require.Eventually(t, func() bool { return !marked() }, time.Minute, 5*time.Millisecond)
	c.driver.set(func() { c.driver.fail, c.driver.notReady = nil, 2 })
	require.Nil(t, c.wait(t, "s", snapshot.IsReady).Status.Error)
	require.False(t, marked())
}

// TestInvalidSnapshots names what is wrong, and leaves nothing behind.
func TestInvalidSnapshots(t *testing.T) {
	other := volume("other")
	other.Spec.CSI = nil
	c := start(t, claim("other", corev1.ClaimBound), other)
	c.snapshot(t, "both", api.VolumeSnapshotSource{ClaimName: ptr.To("a"), ContentName: ptr.To("b")})
	c.wait(t, "both", failsWith("spec.source: name exactly one of persistentVolumeClaimName and volumeSnapshotContentName"))
	c.snapshot(t, "missing", api.VolumeSnapshotSource{ContentName: ptr.To("none")})
	c.wait(t, "missing", failsWith(`VolumeSnapshotContent "none", which spec.source names, does not exist`))
	c.snapshot(t, "directory", ofClaim("other"))
	c.wait(t, "directory", failsWith(`volume "pv-other" of claim "other" is not of a CSI driver: only those have snapshots`))
	for _, name := range []string{"both", "missing", "directory"} {
		c.remove(t, name)
	}
}
