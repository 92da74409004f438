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

// growingWorld has a Pod with a volume of 1Gi, and tells of claims.
type growingWorld struct {
	*world
	source *claimSource
	pv     *corev1.PersistentVolume
}

func newGrowingWorld(t *testing.T) *growingWorld {
	w := &growingWorld{world: deviceWorld(t), source: &claimSource{}}
	w.noAttach()
	w.claims = w.source
	w.restart()
	w.pv = w.device("v").DeepCopy()
	require.NoError(t, w.Mount(t.Context(), pod("a", claimVolume("data", "v"))))
	return w
}

func (w *growingWorld) claim() *corev1.PersistentVolumeClaim {
	w.t.Helper()
	claim, err := w.client.CoreV1().PersistentVolumeClaims("ns").Get(w.t.Context(), "v", metav1.GetOptions{})
	require.NoError(w.t, err)
	return claim
}

// grow makes the volume larger, as a resizer does that says the stage.
func (w *growingWorld) grow(size string, stage corev1.ClaimResourceStatus, conditions ...corev1.PersistentVolumeClaimConditionType) {
	w.t.Helper()
	w.pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	require.NoError(w.t, w.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), w.pv, ""))
	w.stage(stage, conditions...)
}

func (w *growingWorld) stage(stage corev1.ClaimResourceStatus, conditions ...corev1.PersistentVolumeClaimConditionType) {
	w.t.Helper()
	claim := w.claim()
	claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: stage}
	claim.Status.Conditions = nil
	for _, kind := range conditions {
		claim.Status.Conditions = append(claim.Status.Conditions,
			corev1.PersistentVolumeClaimCondition{Type: kind, Status: corev1.ConditionTrue})
	}
	require.NoError(w.t, w.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), claim, "ns"))
	w.source.tell("ns", "v")
}

func (w *growingWorld) calls() (count int) {
	for _, call := range w.driver.Calls() {
		if call == "NodeExpandVolume v" {
			count++
		}
	}
	return count
}

func (w *growingWorld) end() {
	w.t.Helper()
	require.NoError(w.t, w.Unmount(w.t.Context(), "a"))
	w.allGone()
	w.stop()
	w.start()
}

// another Pod gets the volume, which would grow if it were time, and goes again.
func (w *growingWorld) another() {
	w.t.Helper()
	require.NoError(w.t, w.Mount(w.t.Context(), pod("b", claimVolume("data", "v"))))
	require.NoError(w.t, w.Unmount(w.t.Context(), "b"))
}

func kinds(claim *corev1.PersistentVolumeClaim) (found []corev1.PersistentVolumeClaimConditionType) {
	for _, c := range claim.Status.Conditions {
		found = append(found, c.Type)
	}
	return found
}

func TestGrowthKeepsToItsStages(t *testing.T) {
	const (
		resizing, pending = corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimFileSystemResizePending
		failed            = corev1.PersistentVolumeClaimControllerResizeError
	)
	w := newGrowingWorld(t)
	w.grow("2Gi", corev1.PersistentVolumeClaimControllerResizeInProgress, resizing)
	w.another()
	require.Zero(t, w.calls(), "the resizer has not said yet whether there is anything to do")
	w.stage(corev1.PersistentVolumeClaimNodeResizePending, resizing, pending, "Foreign")
	require.Contains(t, w.nextEvent(), "FileSystemResizeSuccessful")
	require.Contains(t, w.nextEvent(), "FileSystemResizeSuccessful")
	claim := w.claim()
	require.Equal(t, "2Gi", claim.Status.Capacity.Storage().String())
	require.Empty(t, claim.Status.AllocatedResourceStatuses)
	require.Equal(t, []corev1.PersistentVolumeClaimConditionType{"Foreign"}, kinds(claim))

	// A resizer that has failed with a still larger size keeps its words.
	w.grow("3Gi", corev1.PersistentVolumeClaimControllerResizeInfeasible, resizing, pending, failed)
	require.Contains(t, w.nextEvent(), "FileSystemResizeSuccessful")
	require.Contains(t, w.nextEvent(), "FileSystemResizeSuccessful")
	claim = w.claim()
	require.Equal(t, "3Gi", claim.Status.Capacity.Storage().String())
	require.Equal(t, corev1.PersistentVolumeClaimControllerResizeInfeasible, claim.Status.AllocatedResourceStatuses["storage"])
	require.Equal(t, []corev1.PersistentVolumeClaimConditionType{resizing, failed}, kinds(claim))
	w.end()
}

func TestGrowthThatFailsIsTold(t *testing.T) {
	for name, test := range map[string]struct {
		code  codes.Code
		stage corev1.ClaimResourceStatus
		told  bool
	}{
		"for good, and may be tried again": {codes.FailedPrecondition, corev1.PersistentVolumeClaimNodeResizeInProgress, true},
		"for ever":                         {codes.OutOfRange, corev1.PersistentVolumeClaimNodeResizeInfeasible, true},
		"nobody knows":                     {codes.Aborted, corev1.PersistentVolumeClaimNodeResizeInProgress, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newGrowingWorld(t)
			w.driver.FailNext("NodeExpandVolume", csifake.Fault{Code: test.code})
			w.grow("2Gi", corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimFileSystemResizePending)
			require.Contains(t, w.nextEvent(), "FileSystemResizeFailed")
			claim := w.claim()
			require.Equal(t, test.stage, claim.Status.AllocatedResourceStatuses["storage"])
			require.Equal(t, test.told, len(claim.Status.Conditions) == 2, "%v", claim.Status.Conditions)
			require.Equal(t, "1Gi", claim.Status.Capacity.Storage().String())
			if test.stage == corev1.PersistentVolumeClaimNodeResizeInfeasible {
				w.step(time.Minute)
				w.another()
				require.Equal(t, 1, w.calls(), "it is not tried again before the resizer says so")
				w.stage(corev1.PersistentVolumeClaimNodeResizePending)
			} else {
				w.step(time.Minute)
			}
			require.Contains(t, w.nextEvent(), "FileSystemResizeSuccessful")
			require.Contains(t, w.nextEvent(), "FileSystemResizeSuccessful")
			require.Empty(t, w.claim().Status.AllocatedResourceStatuses)
			require.Empty(t, w.claim().Status.Conditions)
			w.end()
		})
	}
}

// share has several nodes write to the volume, and says whether the resizer says that nodes have no part in its growth.
func (w *growingWorld) share(idle bool) {
	w.t.Helper()
	claim := w.claim()
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	claim.Annotations = nil
	if idle {
		claim.Annotations = map[string]string{"volume.kubernetes.io/node-expansion-not-required": "true"}
	}
	require.NoError(w.t, w.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), claim, "ns"))
}

// elsewhere has another node be the first that does its part.
func (w *growingWorld) elsewhere(size string) {
	w.t.Helper()
	claim := w.claim()
	claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	require.NoError(w.t, w.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), claim, "ns"))
	w.grow(size, "")
}

func TestEachNodeHasItsPartInTheGrowthOfASharedVolume(t *testing.T) {
	w := newGrowingWorld(t)
	called := func(times int) { // to its end, which the events follow
		t.Helper()
		require.Contains(t, w.nextEvent(), "FileSystemResizeSuccessful")
		require.Contains(t, w.nextEvent(), "FileSystemResizeSuccessful")
		require.Equal(t, times, w.calls(), "%v", w.driver.Calls())
	}
	looks := func() (count int) { // at a volume, with what its claim said just before
		for _, action := range w.client.Actions() {
			if action.Matches("get", "persistentvolumes") {
				count++
			}
		}
		return count
	}
	leftAlone := func(size string) {
		t.Helper()
		before := looks()
		w.elsewhere(size)
		w.await("the manager looks", func() bool { return looks() > before })
	}
	leftAlone("2Gi") // who has a volume alone has nobody to follow
	w.share(false)
	w.another()
	w.elsewhere("3Gi")
	called(1)
	w.driver.FailNext("NodeExpandVolume", csifake.Fault{Code: codes.OutOfRange})
	w.elsewhere("4Gi")
	require.Contains(t, w.nextEvent(), "FileSystemResizeFailed")
	require.Empty(t, w.claim().Status.Conditions, "another node has said that all is well")
	require.Empty(t, w.claim().Status.AllocatedResourceStatuses["storage"])
	w.step(time.Minute)
	called(3)

	w.share(true)
	leftAlone("5Gi")
	w.share(false)
	require.NoError(t, w.Mount(t.Context(), pod("b", claimVolume("data", "v"))))
	w.elsewhere("6Gi")
	called(4) // once for both
	require.NoError(t, w.Unmount(t.Context(), "b"))

	w.restart()
	require.NoError(t, w.Mount(t.Context(), pod("a", claimVolume("data", "v"))))
	called(5) // nobody knows what was missed meanwhile
	w.end()
	require.Equal(t, 5, w.calls())
}
