package rotate_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/logs/rotate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// runtime creates a new file when a log is reopened.
type runtime struct {
	mu    sync.Mutex
	paths map[string]string // by container
	err   error
	calls int
}

func (r *runtime) ReopenContainerLog(_ context.Context, in *runtimeapi.ReopenContainerLogRequest, _ ...grpc.CallOption) (
	*runtimeapi.ReopenContainerLogResponse, error,
) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	if r.err != nil {
		return nil, r.err
	}
	return &runtimeapi.ReopenContainerLogResponse{}, os.WriteFile(r.paths[in.ContainerId], nil, 0o640)
}

func (r *runtime) called() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls
}

// start runs a Rotator of the runtime's logs, all of one owner.
func start(t *testing.T, r *runtime, config rotate.Config) *rotate.Rotator {
	t.Helper()
	rotator, err := rotate.New(rotate.Deps{Runtime: r}, config)
	require.NoError(t, err)
	var logs []rotate.Log
	for id, path := range r.paths {
		logs = append(logs, rotate.Log{ContainerID: id, Path: path})
	}
	rotator.SetLogs("pod", logs)
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _ = rotator.Start(ctx) })
	t.Cleanup(func() { cancel(); group.Wait() })
	return rotator
}

func one(t *testing.T) (*runtime, string) {
	path := filepath.Join(t.TempDir(), "0.log")
	return &runtime{paths: map[string]string{"c": path}}, path
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func write(t *testing.T, path, content string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteString(content)
	require.NoError(t, errors.Join(err, file.Close()))
}

// waitFor waits for a condition, for much longer than the Rotator takes for it.
func waitFor(t *testing.T, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, time.Minute, 5*time.Millisecond)
}

// never is a period after which nothing is checked in a test: only events of the kernel lead to checks.
const never = time.Hour

func TestRotation(t *testing.T) {
	r, path := one(t)
	require.NoError(t, os.WriteFile(path, []byte("short"), 0o640))
	require.NoError(t, os.WriteFile(path+".20200101-000000.gz.tmp", nil, 0o640)) // left by a crash
	start(t, r, rotate.Config{MaxSize: 10, MaxFiles: 3, Period: never})
	for i := range 3 {
		write(t, path, "long enough")
		waitFor(t, func() bool { return r.called() == i+1 })
	}
	dir := filepath.Dir(path)
	compressed := func() []string {
		found, err := filepath.Glob(path + ".*.gz")
		require.NoError(t, err)
		return found
	}
	waitFor(t, func() bool { return len(names(t, dir)) == 3 && len(compressed()) == 1 })
	require.Regexp(t, `^0\.log\.\d{8}-\d{6}(-\d+)?\.gz$`, filepath.Base(compressed()[0]), "the newest is not compressed")
	packed, err := os.Open(compressed()[0])
	require.NoError(t, err)
	defer packed.Close()
	zip, err := gzip.NewReader(packed)
	require.NoError(t, err)
	content, err := io.ReadAll(zip)
	require.NoError(t, err)
	require.Equal(t, "long enough", string(content))
}

// TestFloodIsBounded has a container write as fast as it can: the files stay within their number, and each within a few
// times the limit.
func TestFloodIsBounded(t *testing.T) {
	const limit, files = 1 << 20, 3
	r, path := one(t)
	require.NoError(t, os.WriteFile(path, nil, 0o640))
	start(t, r, rotate.Config{MaxSize: limit, MaxFiles: files, Period: never})
	line := bytes.Repeat([]byte("x"), 8<<10)
	largest, deadline := int64(0), time.Now().Add(3*time.Second)
	for time.Now().Before(deadline) && r.called() < 20 {
		file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o640)
		require.NoError(t, err)
		for range 8 {
			_, err = file.Write(line)
			require.NoError(t, err)
		}
		info, err := file.Stat()
		require.NoError(t, errors.Join(err, file.Close()))
		largest = max(largest, info.Size())
		time.Sleep(2 * time.Millisecond) // 32 MB/s
	}
	require.Greater(t, r.called(), 3, "rotations in three seconds")
	require.Less(t, largest, int64(16*limit))
	waitFor(t, func() bool { return len(names(t, filepath.Dir(path))) <= files })
}

// TestContainersComeAndGo ends one container and starts another: only the log of the one that runs is rotated.
func TestContainersComeAndGo(t *testing.T) {
	r, path := one(t)
	require.NoError(t, os.WriteFile(path, nil, 0o640))
	rotator := start(t, r, rotate.Config{MaxSize: 10, Period: never})
	rotator.SetLogs("pod", nil)
	other := filepath.Join(filepath.Dir(path), "1.log")
	require.NoError(t, os.WriteFile(other, nil, 0o640))
	r.mu.Lock()
	r.paths["d"] = other
	r.mu.Unlock()
	rotator.SetLogs("other pod", []rotate.Log{{ContainerID: "d", Path: other}})
	write(t, path, "of a container that has ended")
	write(t, other, "of a container that runs")
	waitFor(t, func() bool { return r.called() == 1 })
	require.FileExists(t, path)
	require.Len(t, names(t, filepath.Dir(path)), 3, "only the other log was rotated")
}

func TestRuntimeThatDoesNotReopenLosesNothing(t *testing.T) {
	r, path := one(t)
	r.err = errors.New("away")
	require.NoError(t, os.WriteFile(path, []byte("long enough"), 0o640))
	start(t, r, rotate.Config{MaxSize: 10, Period: 50 * time.Millisecond})
	waitFor(t, func() bool { return r.called() > 1 })
	r.mu.Lock()
	defer r.mu.Unlock() // no rotation is under way
	waitFor(t, func() bool { return len(names(t, filepath.Dir(path))) == 1 })
	require.Equal(t, []string{"0.log"}, names(t, filepath.Dir(path)))
}

func TestLogThatWasLeftAsideGetsANewFile(t *testing.T) {
	r, path := one(t)
	start(t, r, rotate.Config{MaxSize: 10, Period: never})
	waitFor(t, func() bool { return r.called() == 1 })
	waitFor(t, func() bool { _, err := os.Stat(path); return err == nil })
}

// TestWorkersBoundRotations blocks the runtime: no more logs are rotated at once than there are workers.
func TestWorkersBoundRotations(t *testing.T) {
	dir := t.TempDir()
	r := &blockedRuntime{entered: make(chan struct{}, 10), leave: make(chan struct{})}
	rotator, err := rotate.New(rotate.Deps{Runtime: r}, rotate.Config{MaxSize: 1, Workers: 2, Period: never})
	require.NoError(t, err)
	var logs []rotate.Log
	for i := range 5 {
		path := filepath.Join(dir, fmt.Sprint(i))
		require.NoError(t, os.WriteFile(path, []byte("full"), 0o640))
		logs = append(logs, rotate.Log{ContainerID: path, Path: path})
	}
	rotator.SetLogs("pod", logs)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- rotator.Start(ctx) }()
	<-r.entered
	<-r.entered
	require.Never(t, func() bool { return len(r.entered) > 0 }, 100*time.Millisecond, 10*time.Millisecond)
	close(r.leave)
	for range 3 {
		<-r.entered
	}
	cancel()
	require.NoError(t, <-done)
}

// blockedRuntime reopens no log before leave is closed.
type blockedRuntime struct{ entered, leave chan struct{} }

func (r *blockedRuntime) ReopenContainerLog(_ context.Context, in *runtimeapi.ReopenContainerLogRequest, _ ...grpc.CallOption) (
	*runtimeapi.ReopenContainerLogResponse, error,
) {
	r.entered <- struct{}{}
	<-r.leave
	return &runtimeapi.ReopenContainerLogResponse{}, os.WriteFile(in.ContainerId, nil, 0o640)
}

func TestInvalidConfig(t *testing.T) {
	for _, config := range []rotate.Config{{MaxSize: -1}, {MaxFiles: 1}, {Workers: -1}, {Period: time.Millisecond}} {
		_, err := rotate.New(rotate.Deps{Runtime: &runtime{}}, config)
		require.ErrorContains(t, err, "want a size above 0, at least 2 files, 1 worker and 50ms")
	}
	_, err := rotate.New(rotate.Deps{}, rotate.Config{})
	require.EqualError(t, err, "rotate: Deps.Runtime is required")
}
