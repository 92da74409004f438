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
			w := newFixture(t)
			p := pod("a")
			w.add(p)
			w.waitStatus(p.UID, "running", running)
			w.clock.SetTime(w.clock.Now().Add(step))
			w.runtime.Exit("main", 3)
			s := w.waitStatus(p.UID, "restarted", restarted(1))
			require.EqualValues(t, 3, s.ContainerStatuses[0].LastTerminationState.Terminated.ExitCode)
			w.untilQuiet()
			require.Equal(t, 2, w.runtime.Calls("StartContainer"), "one start for each end")

			boxes, err := w.runtime.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
			require.NoError(t, err)
			w.clock.SetTime(w.clock.Now().Add(step))
			_, err = w.runtime.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: boxes.Items[0].Id})
			require.NoError(t, err)
			w.waitFor("restarted in a new sandbox", func() bool {
				w.clock.Step(time.Second)
				s, _ := w.statuses.Get(p.UID)
				return restarted(2)(s) && w.runtime.Running()["main"] == 1
			})
			w.untilQuiet()
			require.Equal(t, 2, w.runtime.Calls("RunPodSandbox"))
			require.Equal(t, 3, w.runtime.Calls("StartContainer"))
		})
	}
}

// restarted is a Pod that runs after so many restarts.
func restarted(times int32) func(corev1.PodStatus) bool {
	return func(s corev1.PodStatus) bool { return running(s) && s.ContainerStatuses[0].RestartCount == times }
}
