package podworker_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// cpusInRuntime returns the CPUs of the only container, as the runtime has them.
func (f *fixture) cpusInRuntime() string {
	list, err := f.runtime.ListContainers(f.t.Context(), &runtimeapi.ListContainersRequest{})
	require.NoError(f.t, err)
	require.Len(f.t, list.Containers, 1)
	got, err := f.runtime.ContainerStatus(f.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: list.Containers[0].Id})
	require.NoError(f.t, err)
	return got.Status.Resources.GetLinux().GetCpusetCpus()
}

// waitPlace waits until the container is where it is to be, and returns where it was meanwhile.
func (f *fixture) waitPlace(want string) (places []string) {
	f.waitFor("the container is on CPUs "+want, func() bool {
		f.clock.Step(time.Second)
		places = append(places, f.builder.places()...)
		return len(places) > 0 && places[len(places)-1] == want
	})
	return places
}

func TestContainersMoveToOtherCPUs(t *testing.T) {
	f := newFixture(t)
	f.builder.setCPUs("0-3")
	p := pod("a")
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	f.waitPlace("0-3")
	require.Zero(t, f.runtime.Calls("UpdateContainerResources"), "it was created there")

	f.builder.setCPUs("0")
	f.runtime.FailNext("UpdateContainerResources", errors.New("the runtime has died"))
	f.signals.PoolChanged()
	require.Contains(t, f.waitPlace("0"), "anywhere", "after the error it may be on the old CPUs or on the new ones")
	require.Equal(t, "0", f.cpusInRuntime())
}

// TestContainersOfAnEarlierProcessAreMovedOnce restarts the kubelet: what the runtime says of a container's CPUs may be older or newer than
// the last change that the earlier process has requested.
func TestContainersOfAnEarlierProcessAreMovedOnce(t *testing.T) {
	f := newFixture(t)
	f.builder.setCPUs("0-3")
	p := pod("a")
	f.add(p)
	p.Status = f.waitStatus(p.UID, "running", running)
	f.waitPlace("0-3")
	f.stop()
	f.builder.places()
	f.start()
	f.add(p)
	require.Equal(t, "anywhere", f.waitPlace("0-3")[0])
	require.Equal(t, 1, f.runtime.Calls("UpdateContainerResources"))
	f.signals.PoolChanged()
	<-f.signals.Ping()
	require.Equal(t, 1, f.runtime.Calls("UpdateContainerResources"))
}
