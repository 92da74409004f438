package podworker_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A minute in which nothing changes costs nothing that grows with the number of Pods: whatever looked at each Pod but
// once would make more calls than are allowed here.
func TestIdleCostsNothingPerPod(t *testing.T) {
	const pods = 60
	f := newFixture(t)
	f.runtime.AddImage("app:1")
	for i := range pods {
		f.add(pod(fmt.Sprint(i)))
	}
	for i := range pods {
		f.waitStatus(types.UID(fmt.Sprint("uid-", i)), "running", func(s corev1.PodStatus) bool { return running(s) })
	}
	before := f.untilQuiet()
	for range 60 {
		f.clock.Step(time.Second)
	}
	require.Less(t, f.untilQuiet()-before, pods/2, "calls of the runtime in a minute of rest")
}

// untilQuiet waits until the workers have nothing to do, and returns how often the runtime was called by then.
func (f *fixture) untilQuiet() int {
	f.t.Helper()
	calls := func() (sum int) {
		for _, method := range []string{
			"ListPodSandbox", "ListContainers", "PodSandboxStatus", "ContainerStatus", "ImageStatus", "RunPodSandbox",
			"CreateContainer", "StartContainer", "StopContainer", "RemoveContainer",
		} {
			sum += f.runtime.Calls(method)
		}
		return sum
	}
	last, quiet := -1, 0
	require.Eventually(f.t, func() bool {
		now := calls()
		if quiet++; now != last {
			last, quiet = now, 0
		}
		return quiet == 10 // a worker on a slow machine may not come to call for a while
	}, time.Minute, 50*time.Millisecond, "never quiet")
	return last
}
