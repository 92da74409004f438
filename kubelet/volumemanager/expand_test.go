package volumemanager_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	csifake "github.com/berth-dev/berth/volume/csi/fake"
)

// expansionFixture has a Pod with a volume of 1Gi, and a ClaimSource.
type expansionFixture struct {
	*fixture
	source *claimSource
	pv     *corev1.PersistentVolume
}

func newExpansionFixture(t *testing.T) *expansionFixture {
	f := &expansionFixture{fixture: newDriverFixture(t), source: &claimSource{}}
	f.createUnattachedDriver()
	f.claims = f.source
	f.restart()
	f.pv = f.createDriverClaim("v").DeepCopy()
	require.NoError(t, f.Mount(t.Context(), pod("a", claimVolume("data", "v"))))
	return f
}

func (f *expansionFixture) getClaim() *corev1.PersistentVolumeClaim {
	f.t.Helper()
	claim, err := f.client.CoreV1().PersistentVolumeClaims("ns").Get(f.t.Context(), "v", metav1.GetOptions{})
	require.NoError(f.t, err)
	return claim
}

// resize makes the volume larger and sets the stage, as a resizer does.
func (f *expansionFixture) resize(size string, stage corev1.ClaimResourceStatus, conditions ...corev1.PersistentVolumeClaimConditionType) {
	f.t.Helper()
	f.pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	f.request(size)
	require.NoError(f.t, f.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), f.pv, ""))
	f.setStage(stage, conditions...)
}

// request sets the size that the claim requests, which no kubelet reacts to.
func (f *expansionFixture) request(size string) {
	f.t.Helper()
	claim := f.getClaim()
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	require.NoError(f.t, f.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), claim, "ns"))
}

func (f *expansionFixture) setStage(stage corev1.ClaimResourceStatus, conditions ...corev1.PersistentVolumeClaimConditionType) {
	f.t.Helper()
	claim := f.getClaim()
	claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: stage}
	claim.Status.Conditions = nil
	for _, kind := range conditions {
		claim.Status.Conditions = append(claim.Status.Conditions,
			corev1.PersistentVolumeClaimCondition{Type: kind, Status: corev1.ConditionTrue})
	}
	require.NoError(f.t, f.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), claim, "ns"))
	f.source.notify("ns", "v")
}

func (f *expansionFixture) expandCalls() (count int) {
	for _, call := range f.driver.Calls() {
		if call == "NodeExpandVolume v" {
			count++
		}
	}
	return count
}

func (f *expansionFixture) finish() {
	f.t.Helper()
	require.NoError(f.t, f.Unmount(f.t.Context(), "a"))
	f.requireUnstaged()
	f.stop()
	f.start()
}

// mountAnotherPod Pod gets the volume, which would grow if it were time, and goes again.
func (f *expansionFixture) mountAnotherPod() {
	f.t.Helper()
	require.NoError(f.t, f.Mount(f.t.Context(), pod("b", claimVolume("data", "v"))))
	require.NoError(f.t, f.Unmount(f.t.Context(), "b"))
}

func conditionTypes(claim *corev1.PersistentVolumeClaim) (found []corev1.PersistentVolumeClaimConditionType) {
	for _, c := range claim.Status.Conditions {
		found = append(found, c.Type)
	}
	return found
}

func TestExpansionFollowsTheStagesOfTheClaim(t *testing.T) {
	const (
		resizing, pending = corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimFileSystemResizePending
		failed            = corev1.PersistentVolumeClaimControllerResizeError
	)
	f := newExpansionFixture(t)
	f.resize("2Gi", corev1.PersistentVolumeClaimControllerResizeInProgress, resizing)
	f.mountAnotherPod()
	require.Zero(t, f.expandCalls(), "the resizer has not decided yet whether nodes have to expand the volume")
	f.setStage(corev1.PersistentVolumeClaimNodeResizePending, resizing, pending, "Foreign")
	require.Contains(t, f.nextEvent(), "FileSystemResizeSuccessful")
	require.Contains(t, f.nextEvent(), "FileSystemResizeSuccessful")
	claim := f.getClaim()
	require.Equal(t, "2Gi", claim.Status.Capacity.Storage().String())
	require.Empty(t, claim.Status.AllocatedResourceStatuses)
	require.Equal(t, []corev1.PersistentVolumeClaimConditionType{"Foreign"}, conditionTypes(claim))

	// The stage of a resizer that has failed with a still larger size is kept.
	f.resize("3Gi", corev1.PersistentVolumeClaimControllerResizeInfeasible, resizing, pending, failed)
	require.Contains(t, f.nextEvent(), "FileSystemResizeSuccessful")
	require.Contains(t, f.nextEvent(), "FileSystemResizeSuccessful")
	claim = f.getClaim()
	require.Equal(t, "3Gi", claim.Status.Capacity.Storage().String())
	require.Equal(t, corev1.PersistentVolumeClaimControllerResizeInfeasible, claim.Status.AllocatedResourceStatuses["storage"])
	require.Equal(t, []corev1.PersistentVolumeClaimConditionType{resizing, failed}, conditionTypes(claim))
	f.finish()
}

func TestFailedExpansionIsReported(t *testing.T) {
	for name, test := range map[string]struct {
		code   codes.Code
		stage  corev1.ClaimResourceStatus
		marked bool
	}{
		"for good, and may be tried again": {codes.FailedPrecondition, corev1.PersistentVolumeClaimNodeResizeInProgress, true},
		"for ever":                         {codes.OutOfRange, corev1.PersistentVolumeClaimNodeResizeInfeasible, true},
		"uncertain":                        {codes.Aborted, corev1.PersistentVolumeClaimNodeResizeInProgress, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newExpansionFixture(t)
			f.driver.FailNext("NodeExpandVolume", csifake.Fault{Code: test.code})
			f.resize("2Gi", corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimFileSystemResizePending)
			require.Contains(t, f.nextEvent(), "FileSystemResizeFailed")
			claim := f.getClaim()
			require.Equal(t, test.stage, claim.Status.AllocatedResourceStatuses["storage"])
			require.Equal(t, test.marked, len(claim.Status.Conditions) == 2, "%v", claim.Status.Conditions)
			require.Equal(t, "1Gi", claim.Status.Capacity.Storage().String())
			if test.stage == corev1.PersistentVolumeClaimNodeResizeInfeasible {
				f.step(time.Minute)
				f.mountAnotherPod()
				require.Equal(t, 1, f.expandCalls(), "it is not retried before the resizer changes the stage")
				f.setStage(corev1.PersistentVolumeClaimNodeResizePending)
			} else {
				f.step(time.Minute)
			}
			require.Contains(t, f.nextEvent(), "FileSystemResizeSuccessful")
			require.Contains(t, f.nextEvent(), "FileSystemResizeSuccessful")
			require.Empty(t, f.getClaim().Status.AllocatedResourceStatuses)
			require.Empty(t, f.getClaim().Status.Conditions)
			f.finish()
		})
	}
}

// TestFailedExpansionLeavesALowerRequestToTheResizer has a claim request less after an attempt that failed for good, but not as infeasible.
func TestFailedExpansionLeavesALowerRequestToTheResizer(t *testing.T) {
	f := newExpansionFixture(t)
	f.driver.FailNext("NodeExpandVolume", csifake.Fault{Code: codes.PermissionDenied})
	f.resize("9Gi", corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimFileSystemResizePending)
	require.Contains(t, f.nextEvent(), "FileSystemResizeFailed")
	require.Equal(t, corev1.PersistentVolumeClaimNodeResizeInProgress, f.getClaim().Status.AllocatedResourceStatuses["storage"])
	f.driver.FailNext("NodeExpandVolume", csifake.Fault{Code: codes.PermissionDenied})
	f.request("5Gi")
	f.source.notify("ns", "v")
	require.Eventually(t, func() bool {
		return f.getClaim().Status.AllocatedResourceStatuses["storage"] == corev1.PersistentVolumeClaimNodeResizeInfeasible
	}, time.Minute, 5*time.Millisecond)

	f.resize("5Gi", corev1.PersistentVolumeClaimNodeResizePending) // as a resizer does
	require.Eventually(t, func() bool { return len(f.getClaim().Status.AllocatedResourceStatuses) == 0 }, time.Minute, 5*time.Millisecond)
	require.Equal(t, "5Gi", f.getClaim().Status.Capacity.Storage().String())
	f.finish()
}

// setShared makes the volume one that several nodes write to; idle means that nodes need not expand it.
func (f *expansionFixture) setShared(idle bool) {
	f.t.Helper()
	claim := f.getClaim()
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	claim.Annotations = nil
	if idle {
		claim.Annotations = map[string]string{"volume.kubernetes.io/node-expansion-not-required": "true"}
	}
	require.NoError(f.t, f.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), claim, "ns"))
}

// expandElsewhere makes another node the first that expands the volume.
func (f *expansionFixture) expandElsewhere(size string) {
	f.t.Helper()
	claim := f.getClaim()
	claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	require.NoError(f.t, f.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), claim, "ns"))
	f.resize(size, "")
}

func TestEachNodeExpandsASharedVolume(t *testing.T) {
	f := newExpansionFixture(t)
	called := func(times int) { // to its end, which the events follow
		t.Helper()
		require.Contains(t, f.nextEvent(), "FileSystemResizeSuccessful")
		require.Contains(t, f.nextEvent(), "FileSystemResizeSuccessful")
		require.Equal(t, times, f.expandCalls(), "%v", f.driver.Calls())
	}
	reads := func() (count int) { // of the volume, each after a read of its claim
		for _, action := range f.client.Actions() {
			if action.Matches("get", "persistentvolumes") {
				count++
			}
		}
		return count
	}
	leftAlone := func(size string) {
		t.Helper()
		before := reads()
		f.expandElsewhere(size)
		f.eventually("the manager reads the volume", func() bool { return reads() > before })
	}
	leftAlone("2Gi") // a volume of one node follows no other node
	f.setShared(false)
	f.mountAnotherPod()
	f.expandElsewhere("3Gi")
	called(1)
	f.driver.FailNext("NodeExpandVolume", csifake.Fault{Code: codes.OutOfRange})
	f.expandElsewhere("4Gi")
	require.Contains(t, f.nextEvent(), "FileSystemResizeFailed")
	require.Empty(t, f.getClaim().Status.Conditions, "another node has reported success")
	require.Empty(t, f.getClaim().Status.AllocatedResourceStatuses["storage"])
	f.step(time.Minute)
	called(3)

	f.setShared(true)
	leftAlone("5Gi")
	f.setShared(false)
	require.NoError(t, f.Mount(t.Context(), pod("b", claimVolume("data", "v"))))
	f.expandElsewhere("6Gi")
	called(4) // once for both
	require.NoError(t, f.Unmount(t.Context(), "b"))

	f.restart()
	require.NoError(t, f.Mount(t.Context(), pod("a", claimVolume("data", "v"))))
	called(5) // it is unknown what was missed meanwhile
	f.finish()
	require.Equal(t, 5, f.expandCalls())
}
