package pleg_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
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
}

func newFixture(t *testing.T) *fixture {
	w := &fixture{t: t, clock: clocktesting.NewFakeClock(time.Unix(1e9, 0)), dirty: map[types.UID]int{}}
	w.runtime = fake.New(w.clock)
	var err error
	w.watcher, err = pleg.New(pleg.Deps{
		Runtime: w.runtime, Clock: w.clock,
		OnPodChanged: func(uid types.UID) { w.mu.Lock(); defer w.mu.Unlock(); w.dirty[uid]++ },
		OnListed:     func([]types.UID) { w.mu.Lock(); defer w.mu.Unlock(); w.lists++ },
	}, pleg.Config{})
	require.NoError(t, err)
	return w
}

func (w *fixture) start() {
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _ = w.watcher.Start(ctx) })
	w.t.Cleanup(func() { cancel(); group.Wait() })
}

func (w *fixture) runSandbox(uid string) {
	_, err := w.runtime.RunPodSandbox(context.Background(), &runtimeapi.RunPodSandboxRequest{
		Config: &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Uid: uid}, Labels: map[string]string{container.PodUIDLabel: uid},
		},
	})
	require.NoError(w.t, err)
}

func (w *fixture) waitLocked(what string, ok func() bool) {
	w.t.Helper()
	require.Eventually(w.t, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return ok() },
		time.Minute, time.Millisecond, what)
}

func TestEventsMarkTheirPod(t *testing.T) {
	w := newFixture(t)
	w.start()
	w.waitLocked("first listing", func() bool { return w.lists == 1 })
	w.runSandbox("a")
	w.waitLocked("marked", func() bool { return w.dirty["a"] > 0 })
	require.Zero(t, w.watcher.MissedEvents())
}

func TestEverythingIsListedAtConnectAndReconnect(t *testing.T) {
	w := newFixture(t)
	w.runSandbox("before")
	w.start()
	w.waitLocked("found without an event", func() bool { return w.dirty["before"] == 1 && w.lists == 1 })
	w.runtime.CloseEventStreams()
	w.runSandbox("meanwhile")
	w.waitLocked("found after reconnecting", func() bool {
		w.clock.Step(10 * time.Millisecond)
		return w.dirty["meanwhile"] == 1
	})
	require.Zero(t, w.watcher.MissedEvents(), "a reconnect explains what it finds")
}

func TestLostEventIsFoundAndCounted(t *testing.T) {
	w := newFixture(t)
	w.runSandbox("a")
	w.start()
	w.waitLocked("first listing", func() bool { return w.lists == 1 && w.clock.HasWaiters() })
	w.runtime.DropPod("a")
	w.clock.Step(pleg.RelistPeriod)
	w.waitLocked("found", func() bool { return w.dirty["a"] == 2 })
	require.Equal(t, int64(1), w.watcher.MissedEvents())
}

func TestRuntimeWithoutEventsIsPolled(t *testing.T) {
	w := newFixture(t)
	w.runtime.FailNext("GetContainerEvents", status.Error(codes.Unimplemented, "no events"))
	w.start()
	w.waitLocked("first listing", func() bool { return w.lists == 1 && w.clock.HasWaiters() })
	w.runSandbox("a")
	w.clock.Step(pleg.PollPeriod)
	w.waitLocked("found", func() bool { return w.dirty["a"] == 1 })
	require.Zero(t, w.watcher.MissedEvents(), "without events there is no drift to speak of")
}

func TestReadIsOnePodOnly(t *testing.T) {
	w := newFixture(t)
	w.runSandbox("a")
	w.runSandbox("b")
	got, err := w.watcher.Read(context.Background(), "a")
	require.NoError(t, err)
	require.Len(t, got.Sandboxes, 1)
	require.Equal(t, []string{"10.1.0.2"}, got.IPs)
	w.runtime.FailNext("ListContainers", status.Error(codes.Unavailable, "gone"))
	_, err = w.watcher.Read(context.Background(), "a")
	require.ErrorContains(t, err, "read runtime state of pod a")
}
