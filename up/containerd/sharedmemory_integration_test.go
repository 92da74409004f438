//go:build integration

package containerd_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/up/containerd"
)

// sharedMemory lists the sandboxes' mounts of shared memory.
func (n *fixture) sharedMemory(t testing.TB) (mounts []string) {
	all, err := mountinfo.GetMounts(mountinfo.PrefixFilter(n.State()))
	require.NoError(t, err)
	for _, mount := range all {
		if mount.FSType == "tmpfs" {
			mounts = append(mounts, mount.Mountpoint)
		}
	}
	return mounts
}

// TestDeadSandboxKeepsNoSharedMemory kills the shims of Pods whose containers are kept, as the kubelet keeps those of a Pod that it has
// started again: the memory at /dev/shm is released at once, or by the clean-up if no process followed the events. That of a
// Pod that runs stays.
func TestDeadSandboxKeepsNoSharedMemory(t *testing.T) {
	n := newFixture(t)
	n.start(t)
	n.importImages(t)
	data := volume(t)
	lives := n.run(t, n.sandbox("lives", t.TempDir(), false), data)
	kept := n.sharedMemory(t)
	require.Len(t, kept, 1)
	start := func(runtime string) pod {
		p := n.runWith(t, n.sandbox("of-"+runtime, t.TempDir(), false), data, runtime)
		require.Len(t, n.sharedMemory(t), 2)
		return p
	}
	for _, runtime := range containerd.Runtimes() {
		p := start(runtime)
		n.killShim(t, p.sandbox)
		require.Eventually(t, func() bool {
			released, err := n.ReleaseSharedMemory(t.Context())
			require.NoError(t, err)
			return slices.Equal(released, []string{p.sandbox})
		}, waitTimeout, 5*time.Millisecond, "clean-up, %s", runtime)
		require.Equal(t, kept, n.sharedMemory(t))
		n.waitExited(t, p)
		n.end(t, p)
	}

	exits, err := containerd.NewExitRecords(containerd.ExitRecordsDeps{Logger: slog.New(slog.NewTextHandler(n.log, nil))}, n.Config)
	require.NoError(t, err)
	require.NoError(t, exits.Recover(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	following.Go(func() { _ = exits.Watch(ctx) }) // it ends with the test
	t.Cleanup(func() { cancel(); following.Wait() })
	n.waitForWatch(t, exits)
	exits.FinishRecovery(t.Context())
	for _, runtime := range containerd.Runtimes() {
		p := start(runtime)
		n.killShim(t, p.sandbox)
		require.Eventually(t, func() bool { return slices.Equal(kept, n.sharedMemory(t)) }, waitTimeout, 5*time.Millisecond, "event, %s", runtime)
		n.waitExited(t, p)
		n.end(t, p)
	}
	n.end(t, lives)
	n.stop(t)
	require.NoError(t, n.RemoveDeadSockets())
	n.requireNothingLeft(t)
	n.clean(t)
}
