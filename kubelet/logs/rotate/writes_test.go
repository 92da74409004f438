package rotate

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestLogsAreCheckedWithoutEvents ends the kernel's reports of writes while a log is idle.
func TestLogsAreCheckedWithoutEvents(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	r, err := New(Deps{}, Config{InPlace: true, MaxSize: 10, Period: minCheck})
	require.NoError(t, err)
	r.SetLogs("pod", []Log{{ContainerID: "c", Path: path, InPlace: true}})
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { _ = r.Start(ctx) })
	defer group.Wait()
	defer cancel()
	require.Eventually(t, func() bool {
		idle := make(chan bool)
		r.post(func() { idle <- r.writes != nil && !r.due.Has("c") })
		return <-idle
	}, time.Minute, time.Millisecond)
	ended := make(chan error, 1)
	r.post(func() { ended <- r.writes.inotify.SetReadDeadline(time.Unix(1, 0)) }) // its read fails
	require.NoError(t, <-ended)

	require.NoError(t, os.WriteFile(path, []byte("long enough"), 0o600))
	require.Eventually(t, func() bool {
		size, err := measure(path)
		return err == nil && size == 0
	}, time.Minute, time.Millisecond, "it was rotated")
}
