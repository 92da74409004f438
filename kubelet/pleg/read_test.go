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
func (w *fixture) startContainer(box, uid, name string) string {
	ctx := context.Background()
	resp, err := w.runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: box, Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: name}, Image: &runtimeapi.ImageSpec{Image: "app:1"},
			Labels: map[string]string{container.PodUIDLabel: uid, container.ContainerNameLabel: name},
		},
	})
	require.NoError(w.t, err)
	_, err = w.runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: resp.ContainerId})
	require.NoError(w.t, err)
	return resp.ContainerId
}

// sandboxID is the id of the Pod's sandbox.
func (w *fixture) sandboxID(uid string) string {
	resp, err := w.runtime.ListPodSandbox(context.Background(), &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{container.PodUIDLabel: uid}},
	})
	require.NoError(w.t, err)
	require.Len(w.t, resp.Items, 1)
	return resp.Items[0].Id
}

// waitFor waits until something holds that needs no lock of ours.
func (w *fixture) waitFor(what string, ok func() bool) {
	w.t.Helper()
	require.Eventually(w.t, ok, time.Minute, time.Millisecond, what)
}

func (w *fixture) calls() int {
	return w.runtime.Calls("ListPodSandbox") + w.runtime.Calls("ListContainers") +
		w.runtime.Calls("PodSandboxStatus") + w.runtime.Calls("ContainerStatus")
}

func TestKnownEmptyPodIsNotRead(t *testing.T) {
	w := newFixture(t)
	require.False(t, w.watcher.KnownEmpty("a"), "nothing was listed yet")
	w.runSandbox("before")
	w.start()
	w.waitLocked("listed", func() bool { return w.watcher.KnownEmpty("a") })
	require.False(t, w.watcher.KnownEmpty("before"), "an earlier process made it")
	w.runSandbox("a")
	w.waitLocked("told", func() bool { return w.dirty["a"] > 0 })
	require.False(t, w.watcher.KnownEmpty("a"))
	_, err := w.watcher.Read(context.Background(), "a")
	require.NoError(t, err)
	require.False(t, w.watcher.KnownEmpty("a"))

	w.runtime.FailNext("GetContainerEvents", status.Error(codes.Unavailable, "away"))
	w.runtime.CloseEventStreams()
	w.waitLocked("without events nobody knows", func() bool { return !w.watcher.KnownEmpty("new") })
}

// TestEventsDuringTheFirstListingAreNotForgotten has a Pod of an earlier process change while everything is listed for
// the first time, and another one come up behind the listing's back. Whoever takes the node for empty of them makes
// their sandboxes once more.
func TestEventsDuringTheFirstListingAreNotForgotten(t *testing.T) {
	w := newFixture(t)
	w.runSandbox("before")
	box := w.sandboxID("before")
	w.startContainer(box, "before", "one")
	release := w.runtime.Block("ListContainers")
	defer release()
	w.start()
	w.waitFor("listing", func() bool { return w.runtime.Calls("ListContainers") == 1 && w.runtime.Calls("ListPodSandbox") == 2 })
	w.runtime.Exit("one", 3)
	w.waitLocked("told of the end", func() bool { return w.dirty["before"] > 0 })
	w.runSandbox("new")
	w.waitLocked("told of the new one", func() bool { return w.dirty["new"] > 0 })
	release()
	w.waitLocked("listed", func() bool { return w.lists == 1 })
	w.waitFor("complete", func() bool { return w.watcher.KnownEmpty("another") })
	require.False(t, w.watcher.KnownEmpty("before"))
	require.False(t, w.watcher.KnownEmpty("new"))
}

func TestReadStartedReadsOneContainer(t *testing.T) {
	w := newFixture(t)
	ctx := context.Background()
	w.start()
	w.waitLocked("first listing", func() bool { return w.lists == 1 })
	w.runSandbox("a")
	had, err := w.watcher.Read(ctx, "a")
	require.NoError(t, err)
	box := had.Sandboxes[0].Id

	one := w.startContainer(box, "a", "one")
	calls := w.calls()
	got, _, err := w.watcher.ReadStarted(ctx, had, pleg.Started{Sandbox: box, Container: one})
	require.NoError(t, err)
	require.Equal(t, calls+1, w.calls())
	require.Equal(t, container.StateRunning, got.FindID(one).State)
	require.Equal(t, box, got.FindID(one).SandboxID)
	require.Len(t, got.Sandboxes, 1)
	require.Equal(t, had.IPs, got.IPs)
	require.Empty(t, had.Containers, "what was read before stays as it is")

	w.mu.Lock()
	before := w.dirty["a"]
	w.mu.Unlock()
	w.runtime.Exit("one", 3)
	w.waitLocked("told of the end", func() bool { return w.dirty["a"] > before })
	two := w.startContainer(box, "a", "two")
	got, complete, err := w.watcher.ReadStarted(ctx, got, pleg.Started{Sandbox: box, Container: two})
	require.NoError(t, err)
	require.False(t, complete, "another container has ended: all has to be read")
	require.Equal(t, container.StateRunning, got.FindID(one).State)

	got, err = w.watcher.Read(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, container.StateExited, got.FindID(one).State)
	_, _, err = w.watcher.ReadStarted(ctx, got, pleg.Started{Sandbox: box, Container: "none"})
	require.ErrorContains(t, err, "read container none of pod a")
}
