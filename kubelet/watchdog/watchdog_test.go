package watchdog_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/kubelet/watchdog"
)

// systemd returns the other end of the notification socket.
func systemd(t *testing.T, limit string) *net.UnixConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", limit)
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	return conn
}

func next(t *testing.T, conn *net.UnixConn) string {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
	state := make([]byte, 100)
	n, err := conn.Read(state)
	require.NoError(t, err)
	return string(state[:n])
}

func TestOnlyHealthIsNotified(t *testing.T) {
	conn := systemd(t, "30000000")
	clock := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	ready, checked := make(chan struct{}), make(chan struct{})
	var sick atomic.Bool
	w, err := watchdog.New(watchdog.Deps{Ready: ready, Clock: clock, Healthy: func(ctx context.Context) error {
		deadline, ok := ctx.Deadline()
		require.True(t, ok)
		require.LessOrEqual(t, time.Until(deadline), 15*time.Second, "a later result is too late")
		now := sick.Load() // before the test continues and may change it
		checked <- struct{}{}
		if now {
			return errors.New("sick")
		}
		return nil
	}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Start(ctx) }()
	close(ready)
	require.Equal(t, "READY=1", next(t, conn))
	<-checked
	require.Equal(t, "WATCHDOG=1", next(t, conn))
	round := func() {
		require.Eventually(t, clock.HasWaiters, time.Minute, time.Millisecond)
		clock.Step(15 * time.Second)
		<-checked
	}
	round()
	require.Equal(t, "WATCHDOG=1", next(t, conn))
	sick.Store(true)
	round()
	round()
	sick.Store(false)
	round()
	require.Equal(t, "WATCHDOG=1", next(t, conn))
	sick.Store(true)
	round()
	cancel()
	require.NoError(t, <-ended)
	require.Equal(t, "STOPPING=1", next(t, conn), "no health notification before it")
}

func TestWithoutWatchdogOrSystemd(t *testing.T) {
	conn := systemd(t, "")
	w, err := watchdog.New(watchdog.Deps{Healthy: func(context.Context) error { panic("checked") }})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Start(ctx) }()
	require.Equal(t, "READY=1", next(t, conn))
	cancel()
	require.NoError(t, <-ended)

	t.Setenv("NOTIFY_SOCKET", "")
	require.NoError(t, w.Start(ctx))
}

func TestInvalidTimeouts(t *testing.T) {
	healthy := func(context.Context) error { return nil }
	for limit, want := range map[string]string{"soon": "WatchdogSec", "-1": "WatchdogSec", "1000000": "want more than 1s"} {
		systemd(t, limit)
		_, err := watchdog.New(watchdog.Deps{Healthy: healthy})
		require.ErrorContains(t, err, want)
	}
	t.Setenv("WATCHDOG_USEC", "500000")
	t.Setenv("WATCHDOG_PID", "1") // meant for another process
	_, err := watchdog.New(watchdog.Deps{Healthy: healthy})
	require.NoError(t, err)
	_, err = watchdog.New(watchdog.Deps{})
	require.ErrorContains(t, err, "Healthy")
}
