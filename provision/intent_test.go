package provision_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/provision"
)

// A claim deleted and created again under its name is another claim.
func TestClaimCreatedAgainUnderItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, newFakeAPI(newClass("fast")), &fakeProvisioner{})
		s.api.createClaim(t, newClaim("claim", "fast"))
		synctest.Wait()
		s.api.deleteClaim(t, "claim")
		synctest.Wait()
		s.api.createClaim(t, newClaim("claim", "fast"))
		synctest.Wait()
		require.Len(t, s.api.volumes(t), 2)
		s.api.bindAndRelease(t)
		synctest.Wait()
		require.Len(t, s.api.volumes(t), 1)
		require.Equal(t, corev1.ClaimBound, s.api.claim(t, "claim").Status.Phase)
	})
}

// An intent that was written by a process that died is resolved, whatever became of the claim meanwhile.
func TestIntentOfAnEarlierProcess(t *testing.T) {
	for name, change := range map[string]func(*corev1.PersistentVolumeClaim){
		"waiting": func(*corev1.PersistentVolumeClaim) {},
		"deleted": func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} },
		"bound elsewhere": func(c *corev1.PersistentVolumeClaim) {
			c.Spec.VolumeName, c.Status.Phase = "another", corev1.ClaimBound
		},
		"not ours any more": func(c *corev1.PersistentVolumeClaim) { c.Annotations = nil },
	} {
		runSynctest(name, t, func(t *testing.T) {
			claim := withUID(newClaim("claim", "fast"), "u")
			claim.Finalizers = []string{"a.b/c", "example.com/intent"}
			change(claim)
			p := &fakeProvisioner{}
			s := run(t, newFakeAPI(newClass("fast"), claim), p, provision.IntentFinalizer("example.com/intent"))
			require.Equal(t, 1, p.callCount(), "a volume may exist: asking for it again is how it is found")
			require.Len(t, s.api.volumes(t), 1)
			s.api.bindAndRelease(t)
			synctest.Wait()
			require.Equal(t, []string{"a.b/c"}, s.api.claim(t, "claim").Finalizers)
		})
	}
}

func TestWithoutIntentNoClaimIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := run(t, newFakeAPI(newClass("fast")), &fakeProvisioner{}, provision.ClaimIntent(false))
		s.api.createClaim(t, newClaim("claim", "fast"))
		synctest.Wait()
		require.Len(t, s.api.volumes(t), 1)
		require.Zero(t, s.api.writeCount("patch persistentvolumeclaims"))
	})
}
