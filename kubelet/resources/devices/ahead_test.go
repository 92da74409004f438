package devices_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/kubelet/resources/devices"
	"github.com/berth-dev/berth/kubelet/resources/rejection"
)

// TestDevicesAreAllocatedAhead: the plugin gets the requests for all containers at once, and none of them again when they start.
func TestDevicesAreAllocatedAhead(t *testing.T) {
	f, p := newFixture(t), newPlugin("x", "y", "z")
	p.options.PreStartRequired = true
	f.serve(p, "gpu")
	f.waitCapacity(3, 3)
	pod := podOf("p", "2", "1")
	require.NoError(t, f.admit(pod))
	f.AllocateAhead(pod)
	f.wait("both are allocated", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.calls) == 2 })
	f.AllocateAhead(pod) // as for another sandbox
	for i := range pod.Spec.Containers {
		_, err := f.Prepare(t.Context(), pod, &pod.Spec.Containers[i])
		require.NoError(t, err)
	}
	f.AllocateAhead(pod)
	require.Equal(t, []string{"allocate x y", "allocate z", "start x y", "start z"}, p.calls)

	f.stop()
	f.start()
	require.Equal(t, []string{"z"}, f.ids("p", "b"), "it is on the disk")
}

// TestAllocationsAheadThatFail: the container's start says why, and the next one asks the plugin again. Other containers have theirs.
func TestAllocationsAheadThatFail(t *testing.T) {
	f, p, pod := newRefusing(t)
	f.AllocateAhead(pod)
	for range 2 {
		var refused *rejection.Error
		_, err := f.prepare(pod)
		require.ErrorAs(t, err, &refused)
		require.ErrorContains(t, err, "on fire")
	}
	require.Equal(t, []string{"allocate x", "allocate x"}, p.calls)
	require.NoError(t, f.Release("p"))
	require.NoError(t, f.admit(podOf("q", "1")), "it has them no more")
}

// TestAllocationsAreStoredBeforeTheyAreUsed has the file not writable first: the container gets its devices when they are on the disk.
func TestAllocationsAreStoredBeforeTheyAreUsed(t *testing.T) {
	f, p := newFixture(t), newPlugin("x")
	f.serve(p, "gpu")
	f.waitCapacity(1, 1)
	dir := filepath.Join(f.root, devices.Dir)
	require.NoError(t, os.Rename(dir, dir+".moved"))
	pod := podOf("p", "1")
	require.NoError(t, f.admit(pod))
	f.AllocateAhead(pod)
	for range 2 {
		_, err := f.prepare(pod)
		require.ErrorContains(t, err, devices.StateFile)
	}
	require.NoError(t, os.Rename(dir+".moved", dir))
	_, err := f.prepare(pod)
	require.NoError(t, err)
	require.Equal(t, []string{"allocate x"}, p.calls)
	f.stop()
	f.start()
	require.Equal(t, []string{"x"}, f.ids("p", "a"))
}
