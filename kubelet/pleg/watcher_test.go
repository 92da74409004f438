package pleg_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/cri/fake"
	"github.com/berth-dev/berth/kubelet/pleg"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type fixture struct {
	t       *testing.T
	clock   *clocktesting.FakeClock
	runtime *fake.Runtime
	watcher *pleg.Watcher

	mu    sync.Mutex
	dirty map[types.UID]int
	lists int
	// opened, failed and events are what the metrics were said of the stream of events.
	opened, failed, events int
	// active are the Pods that the last list has found with containers that have not exited.
	active []types.UID
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{t: t, clock: clocktesting.NewFakeClock(time.Unix(1e9, 0)), dirty: map[types.UID]int{}}
	f.runtime = fake.New(f.clock)
	var err error
	f.watcher, err = pleg.New(pleg.Deps{
		Runtime: f.runtime, Clock: f.clock, Metrics: f,
		OnPodChanged: func(uid types.UID) { f.mu.Lock(); defer f.mu.Unlock(); f.dirty[uid]++ },
		OnListed:     func([]types.UID) { f.mu.Lock(); defer f.mu.Unlock(); f.lists++ },
		OnActive:     func(uids []types.UID) { f.mu.Lock(); defer f.mu.Unlock(); f.active = uids },
	}, pleg.Config{})
	require.NoError(t, err)
	return f
}

// count adds to a counter of the fixture, which is the watcher's Metrics.
func (f *fixture) count(n *int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*n++
}

func (f *fixture) Relisted(time.Duration)      {}
func (f *fixture) StreamOpened()               { f.count(&f.opened) }
func (f *fixture) StreamFailed()               { f.count(&f.failed) }
func (f *fixture) EventReceived(time.Duration) { f.count(&f.events) }

func (f *fixture) start() {
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _ = f.watcher.Start(ctx) })
	f.t.Cleanup(func() { cancel(); group.Wait() })
}

func (f *fixture) runSandbox(uid string) {
	_, err := f.runtime.RunPodSandbox(context.Background(), &runtimeapi.RunPodSandboxRequest{
		Config: &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Uid: uid}, Labels: map[string]string{container.PodUIDLabel: uid},
		},
	})
	require.NoError(f.t, err)
}

func (f *fixture) waitLocked(what string, ok func() bool) {
	f.t.Helper()
	require.Eventually(f.t, func() bool { f.mu.Lock(); defer f.mu.Unlock(); return ok() },
		time.Minute, time.Millisecond, what)
}

func TestEventsMarkTheirPod(t *testing.T) {
	f := newFixture(t)
	f.start()
	f.waitLocked("first listing", func() bool { return f.lists == 1 })
	f.runSandbox("a")
	f.waitLocked("marked", func() bool { return f.dirty["a"] > 0 && f.events > 0 })
	require.Zero(t, f.watcher.MissedEvents())
}

func TestEverythingIsListedAtConnectAndReconnect(t *testing.T) {
	f := newFixture(t)
	f.runSandbox("before")
	f.start()
	f.waitLocked("found without an event", func() bool { return f.dirty["before"] == 1 && f.lists == 1 })
	f.runtime.CloseEventStreams()
	f.runSandbox("meanwhile")
	f.waitLocked("found after reconnecting", func() bool {
		f.clock.Step(10 * time.Millisecond)
		return f.dirty["meanwhile"] == 1 && f.opened == 2 && f.failed == 1
	})
	require.Zero(t, f.watcher.MissedEvents(), "a reconnect explains what it finds")
}

func TestListsNameThePodsThatMayRun(t *testing.T) {
	f := newFixture(t)
	for _, uid := range []string{"created", "running", "exited", "empty"} {
		f.runSandbox(uid)
	}
	f.startContainer(f.sandboxID("running"), "running", "runs")
	f.startContainer(f.sandboxID("exited"), "exited", "exits")
	f.runtime.Exit("exits", 0)
	_, err := f.runtime.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: f.sandboxID("created"), Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "new"}, Labels: map[string]string{container.PodUIDLabel: "created"},
		},
	})
	require.NoError(t, err)
	f.start()
	f.waitLocked("listed", func() bool { return f.lists == 1 })
	require.ElementsMatch(t, []types.UID{"created", "running"}, f.active)
}

func TestLostEventIsFoundAndCounted(t *testing.T) {
	f := newFixture(t)
	f.runSandbox("a")
	f.start()
	f.waitLocked("first listing", func() bool { return f.lists == 1 && f.clock.HasWaiters() })
	f.runtime.DropPod("a")
	f.clock.Step(pleg.RelistPeriod)
	f.waitLocked("found", func() bool { return f.dirty["a"] == 2 && f.clock.HasWaiters() })
	require.Zero(t, f.watcher.MissedEvents(), "the event may be under way")
	f.clock.Step(pleg.RelistPeriod)
	f.waitLocked("counted", func() bool { return f.watcher.MissedEvents() == 1 })
}

// namelessRuntime does not know the Pods of its events, as containerd when it cannot read a sandbox's state.
type namelessRuntime struct{ *fake.Runtime }

type namelessEvents struct {
	grpc.ServerStreamingClient[runtimeapi.ContainerEventResponse]
}

func (r namelessRuntime) GetContainerEvents(ctx context.Context, in *runtimeapi.GetEventsRequest, opts ...grpc.CallOption,
) (grpc.ServerStreamingClient[runtimeapi.ContainerEventResponse], error) {
	events, err := r.Runtime.GetContainerEvents(ctx, in, opts...)
	return namelessEvents{events}, err
}

func (e namelessEvents) Recv() (*runtimeapi.ContainerEventResponse, error) {
	event, err := e.ServerStreamingClient.Recv()
	if event != nil {
		event.PodSandboxStatus = nil
	}
	return event, err
}

// The list that an event without a Pod needs may fail as well. It is tried again before the next periodic one.
func TestListAfterAnEventWithoutAPodIsRetried(t *testing.T) {
	f := newFixture(t)
	var err error
	f.watcher, err = pleg.New(pleg.Deps{
		Runtime: namelessRuntime{f.runtime}, Clock: f.clock, Metrics: f,
		OnPodChanged: func(uid types.UID) { f.mu.Lock(); defer f.mu.Unlock(); f.dirty[uid]++ },
		OnListed:     func([]types.UID) { f.mu.Lock(); defer f.mu.Unlock(); f.lists++ },
	}, pleg.Config{})
	require.NoError(t, err)
	f.start()
	f.waitLocked("first listing", func() bool { return f.lists == 1 && f.clock.HasWaiters() })
	f.runtime.FailNext("ListPodSandbox", status.Error(codes.DeadlineExceeded, "busy"))
	f.runSandbox("a")
	waited := time.Duration(0)
	f.waitLocked("found", func() bool {
		if waited < time.Second {
			waited += time.Millisecond
			f.clock.Step(time.Millisecond)
		}
		return f.dirty["a"] > 0
	})
	require.Zero(t, f.watcher.MissedEvents())
}

func TestLateEventIsNotCounted(t *testing.T) {
	f := newFixture(t)
	f.runSandbox("a")
	box := f.sandboxID("a")
	f.start()
	f.waitLocked("first listing", func() bool { return f.lists == 1 && f.clock.HasWaiters() })
	release := f.runtime.HoldEvents()
	f.startContainer(box, "a", "one")
	f.clock.Step(pleg.RelistPeriod)
	f.waitLocked("found before its event", func() bool { return f.lists == 2 && f.dirty["a"] == 2 && f.clock.HasWaiters() })
	release()
	f.runSandbox("b")
	f.waitLocked("the events have come", func() bool { return f.dirty["b"] > 0 })
	f.clock.Step(pleg.RelistPeriod)
	f.waitLocked("listed again", func() bool { return f.lists == 3 })
	require.Zero(t, f.watcher.MissedEvents())
}

func TestRuntimeWithoutEventsIsPolled(t *testing.T) {
	f := newFixture(t)
	f.runtime.FailNext("GetContainerEvents", status.Error(codes.Unimplemented, "no events"))
	f.start()
	f.waitLocked("first listing", func() bool { return f.lists == 1 && f.clock.HasWaiters() })
	f.runSandbox("a")
	f.clock.Step(pleg.PollPeriod)
	f.waitLocked("found", func() bool { return f.dirty["a"] == 1 })
	require.Zero(t, f.watcher.MissedEvents(), "without events there is no drift to speak of")
}

func TestReadIsOnePodOnly(t *testing.T) {
	f := newFixture(t)
	f.runSandbox("a")
	f.runSandbox("b")
	got, err := f.watcher.Read(context.Background(), "a")
	require.NoError(t, err)
	require.Len(t, got.Sandboxes, 1)
	require.Equal(t, []string{"10.1.0.2"}, got.IPs)
	f.runtime.FailNext("ListContainers", status.Error(codes.Unavailable, "gone"))
	_, err = f.watcher.Read(context.Background(), "a")
	require.ErrorContains(t, err, "read runtime state of pod a")
}
