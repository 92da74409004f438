package podworker_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestSteppedClock sets the machine's clock back and forward by hours under a Pod whose container and sandbox then end.
// What is made after the step is the newest all the same, although its time of creation says otherwise.
func TestSteppedClock(t *testing.T) {
	for name, step := range map[string]time.Duration{"back": -3 * time.Hour, "forward": 3 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			p := pod("a")
			f.add(p)
			f.waitStatus(p.UID, "running", running)
			f.clock.SetTime(f.clock.Now().Add(step))
			f.runtime.Exit("main", 3)
			s := f.waitStatus(p.UID, "restarted", restarted(1))
			require.EqualValues(t, 3, s.ContainerStatuses[0].LastTerminationState.Terminated.ExitCode)
			f.untilQuiet()
			require.Equal(t, 2, f.runtime.Calls("StartContainer"), "one start for each end")

			boxes, err := f.runtime.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
			require.NoError(t, err)
			f.clock.SetTime(f.clock.Now().Add(step))
			_, err = f.runtime.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: boxes.Items[0].Id})
			require.NoError(t, err)
			f.waitFor("restarted in a new sandbox", func() bool {
				f.clock.Step(time.Second)
				s, _ := f.statuses.Get(p.UID)
				return restarted(2)(s) && f.runtime.Running()["main"] == 1
			})
			f.untilQuiet()
			require.Equal(t, 2, f.runtime.Calls("RunPodSandbox"))
			require.Equal(t, 3, f.runtime.Calls("StartContainer"))
		})
	}
}

// restarted is a Pod that runs after so many restarts.
func restarted(times int32) func(corev1.PodStatus) bool {
	return func(s corev1.PodStatus) bool { return running(s) && s.ContainerStatuses[0].RestartCount == times }
}
