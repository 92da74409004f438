package rotate_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/kubelet/logs/rotate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// runtime creates a new file when a log is reopened.
type runtime struct {
	path string

	mu    sync.Mutex
	err   error
	calls int
}

func (r *runtime) ReopenContainerLog(_ context.Context, _ *runtimeapi.ReopenContainerLogRequest, _ ...grpc.CallOption) (
	*runtimeapi.ReopenContainerLogResponse, error,
) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	if r.err != nil {
		return nil, r.err
	}
	return &runtimeapi.ReopenContainerLogResponse{}, os.WriteFile(r.path, nil, 0o640)
}

func (r *runtime) called() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls
}

func start(t *testing.T, r *runtime) (tick func()) {
	clock := clocktesting.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	looked := make(chan struct{}, 100)
	second := false
	rotator, err := rotate.New(rotate.Deps{
		Runtime: r, Clock: clock, Logs: func() []rotate.Log {
			looked <- struct{}{}
			// Every second check does nothing: once it has begun, the one before it has ended.
			if second = !second; !second {
				return nil
			}
			return []rotate.Log{{ContainerID: "c", Path: r.path}}
		},
	}, rotate.Config{MaxSize: 10, MaxFiles: 3})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _ = rotator.Start(ctx) })
	t.Cleanup(func() { cancel(); group.Wait() })
	return func() {
		require.Eventually(t, clock.HasWaiters, time.Minute, time.Millisecond)
		clock.Step(10 * time.Second)
		<-looked
		clock.Step(10 * time.Second) // the second check begins after the first has ended
		<-looked
	}
}

func names(t *testing.T, dir string) []string {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestRotation(t *testing.T) {
	dir := t.TempDir()
	r := &runtime{path: filepath.Join(dir, "0.log")}
	tick := start(t, r)
	write := func(content string) { require.NoError(t, os.WriteFile(r.path, []byte(content), 0o640)) }
	write("short")
	tick()
	require.Zero(t, r.called())
	write("long enough")
	tick()
	require.Equal(t, 1, r.called())
	// The clock may have advanced to the second check before the first one read the time.
	require.Len(t, names(t, dir), 2)
	require.Regexp(t, `^0\.log\.20260102-0304[34]5$`, names(t, dir)[1])
	require.NoError(t, os.WriteFile(r.path+".20260102-030435.gz.tmp", nil, 0o640)) // left by a crash
	write("long enough again")
	tick()
	write("and a third time")
	tick()
	require.Equal(t, 3, r.called())
	got := names(t, dir)
	require.Len(t, got, 3, "no more than three files: %v", got)
	require.Equal(t, "0.log", got[0])
	require.Regexp(t, `^0\.log\.\d{8}-\d{6}\.gz$`, got[1])
	require.Regexp(t, `^0\.log\.\d{8}-\d{6}$`, got[2], "the newest is not packed")
}

func TestRuntimeThatDoesNotReopenLosesNothing(t *testing.T) {
	r := &runtime{path: filepath.Join(t.TempDir(), "0.log"), err: errors.New("away")}
	tick := start(t, r)
	require.NoError(t, os.WriteFile(r.path, []byte("long enough"), 0o640))
	tick()
	require.Positive(t, r.called())
	require.Equal(t, []string{"0.log"}, names(t, filepath.Dir(r.path)))
}

func TestLogThatWasLeftAsideGetsANewFile(t *testing.T) {
	r := &runtime{path: filepath.Join(t.TempDir(), "0.log")}
	tick := start(t, r)
	tick()
	require.Equal(t, 1, r.called())
	require.FileExists(t, r.path)
}
