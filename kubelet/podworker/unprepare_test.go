package podworker_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// TestTheLastStatusComesAfterTheClaims has a driver that needs two attempts to unprepare the ResourceClaim of a Pod that is over. Until it has, the
// Pod's status is no terminal one: after that others allocate the claim's devices.
func TestTheLastStatusComesAfterTheClaims(t *testing.T) {
	f := newFixture(t)
	p := pod("a", func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("gpu")}}
	})
	attempts, results := make(chan struct{}, 2), make(chan error)
	f.builder.unprepare = func() error {
		attempts <- struct{}{}
		return <-results
	}
	f.add(p)
	f.waitStatus(p.UID, "runs", running)
	f.runtime.Exit("main", 0)
	for _, err := range []error{errors.New("the driver is busy"), nil} {
		f.waitFor("an attempt", func() bool { f.clock.Step(time.Second); return len(attempts) > 0 })
		<-attempts
		status := f.waitStatus(p.UID, "containers have ended", func(s corev1.PodStatus) bool {
			return s.ContainerStatuses[0].State.Terminated != nil
		})
		require.Equal(t, corev1.PodRunning, status.Phase)
		results <- err
	}
	require.Equal(t, 1, f.recorder.count("FailedUnprepareDynamicResources: Failed to unprepare dynamic resources: the driver is busy"))
	f.waitStatus(p.UID, "ended", func(s corev1.PodStatus) bool { return s.Phase == corev1.PodSucceeded })
}
