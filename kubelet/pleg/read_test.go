package pleg_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/pleg"
)

// startContainer makes a container in the Pod's sandbox and starts it.
func (f *fixture) startContainer(box, uid, name string) string {
	ctx := context.Background()
	resp, err := f.runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: box, Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: name}, Image: &runtimeapi.ImageSpec{Image: "app:1"},
			Labels: map[string]string{container.PodUIDLabel: uid, container.ContainerNameLabel: name},
		},
	})
	require.NoError(f.t, err)
	_, err = f.runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: resp.ContainerId})
	require.NoError(f.t, err)
	return resp.ContainerId
}

// sandboxID is the id of the Pod's sandbox.
func (f *fixture) sandboxID(uid string) string {
	resp, err := f.runtime.ListPodSandbox(context.Background(), &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{container.PodUIDLabel: uid}},
	})
	require.NoError(f.t, err)
	require.Len(f.t, resp.Items, 1)
	return resp.Items[0].Id
}

// waitFor waits until something holds that needs no lock of ours.
func (f *fixture) waitFor(what string, ok func() bool) {
	f.t.Helper()
	require.Eventually(f.t, ok, time.Minute, time.Millisecond, what)
}

func (f *fixture) calls() int {
	return f.runtime.Calls("ListPodSandbox") + f.runtime.Calls("ListContainers") +
		f.runtime.Calls("PodSandboxStatus") + f.runtime.Calls("ContainerStatus")
}

func TestKnownEmptyPodIsNotRead(t *testing.T) {
	f := newFixture(t)
	require.False(t, f.watcher.KnownEmpty("a"), "nothing was listed yet")
	f.runSandbox("before")
	f.start()
	f.waitLocked("listed", func() bool { return f.watcher.KnownEmpty("a") })
	require.False(t, f.watcher.KnownEmpty("before"), "an earlier process made it")
	f.runSandbox("a")
	f.waitLocked("reported", func() bool { return f.dirty["a"] > 0 })
	require.False(t, f.watcher.KnownEmpty("a"))
	_, err := f.watcher.Read(context.Background(), "a")
	require.NoError(t, err)
	require.False(t, f.watcher.KnownEmpty("a"))

	f.runtime.FailNext("GetContainerEvents", status.Error(codes.Unavailable, "away"))
	f.runtime.CloseEventStreams()
	f.waitLocked("unknown without events", func() bool { return !f.watcher.KnownEmpty("new") })
}

// TestEventsDuringTheFirstListingAreNotForgotten has a Pod of an earlier process change while everything is listed for
// the first time, and another one come up behind the listing's back. Whoever takes the node for empty of them makes
// their sandboxes once more.
func TestEventsDuringTheFirstListingAreNotForgotten(t *testing.T) {
	f := newFixture(t)
	f.runSandbox("before")
	box := f.sandboxID("before")
	f.startContainer(box, "before", "one")
	release := f.runtime.Block("ListContainers")
	defer release()
	f.start()
	f.waitFor("listing", func() bool { return f.runtime.Calls("ListContainers") == 1 && f.runtime.Calls("ListPodSandbox") == 2 })
	f.runtime.Exit("one", 3)
	f.waitLocked("the end is reported", func() bool { return f.dirty["before"] > 0 })
	f.runSandbox("new")
	f.waitLocked("the new one is reported", func() bool { return f.dirty["new"] > 0 })
	release()
	f.waitLocked("listed", func() bool { return f.lists == 1 })
	f.waitFor("complete", func() bool { return f.watcher.KnownEmpty("another") })
	require.False(t, f.watcher.KnownEmpty("before"))
	require.False(t, f.watcher.KnownEmpty("new"))
}

func TestReadStartedReadsOneContainer(t *testing.T) {
	f := newFixture(t)
	ctx := context.Background()
	f.start()
	f.waitLocked("first listing", func() bool { return f.lists == 1 })
	f.runSandbox("a")
	had, err := f.watcher.Read(ctx, "a")
	require.NoError(t, err)
	box := had.Sandboxes[0].Id

	one := f.startContainer(box, "a", "one")
	calls := f.calls()
	got, _, err := f.watcher.ReadStarted(ctx, had, pleg.Started{Sandbox: box, Container: one})
	require.NoError(t, err)
	require.Equal(t, calls+1, f.calls())
	require.Equal(t, container.StateRunning, got.FindID(one).State)
	require.Equal(t, box, got.FindID(one).SandboxID)
	require.Len(t, got.Sandboxes, 1)
	require.Equal(t, had.IPs, got.IPs)
	require.Empty(t, had.Containers, "what was read before stays as it is")

	f.mu.Lock()
	before := f.dirty["a"]
	f.mu.Unlock()
	f.runtime.Exit("one", 3)
	f.waitLocked("the end is reported", func() bool { return f.dirty["a"] > before })
	two := f.startContainer(box, "a", "two")
	got, complete, err := f.watcher.ReadStarted(ctx, got, pleg.Started{Sandbox: box, Container: two})
	require.NoError(t, err)
	require.False(t, complete, "another container has ended: all has to be read")
	require.Equal(t, container.StateRunning, got.FindID(one).State)

	got, err = f.watcher.Read(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, container.StateExited, got.FindID(one).State)
	_, _, err = f.watcher.ReadStarted(ctx, got, pleg.Started{Sandbox: box, Container: "none"})
	require.ErrorContains(t, err, "read container none of pod a")
}
