package nodeshutdown

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// waitTimeout is how long the tests wait for what happens at once.
const waitTimeout = 2 * time.Minute

// bus runs a D-Bus daemon of the test's own, and returns its address.
func bus(t *testing.T) (address string, stop func()) {
	t.Helper()
	program, err := exec.LookPath("dbus-daemon")
	if err != nil {
		t.Skip("install the package dbus-daemon to run this test")
	}
	cmd := exec.Command(program, "--session", "--nofork", "--nopidfile", "--print-address",
		"--address=unix:path="+filepath.Join(t.TempDir(), "bus"))
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	stop = sync.OnceFunc(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	t.Cleanup(stop)
	address, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(address), stop
}

// machine stands for systemd and logind: it has their objects on a real D-Bus, because a test cannot shut its machine down.
type machine struct {
	t     *testing.T
	conn  *dbus.Conn
	props *prop.Properties
	dir   string // of logind's configuration

	mu    sync.Mutex
	locks []*os.File // the ends of locks that were given out
	taken chan struct{}

	waiting sync.WaitGroup // for the release of locks
}

func newMachine(t *testing.T, address string, maxDelay time.Duration) *machine {
	t.Helper()
	conn, err := dbus.Connect(address)
	require.NoError(t, err)
	m := &machine{t: t, conn: conn, dir: filepath.Join(t.TempDir(), "logind.conf.d"), taken: make(chan struct{}, 10)}
	t.Cleanup(m.waiting.Wait)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.Export(m, logindPath, logindIface))
	require.NoError(t, conn.Export(m, systemdPath, systemdIface))
	m.props, err = prop.Export(conn, logindPath, prop.Map{logindIface: {
		"InhibitDelayMaxUSec":  {Value: uint64(maxDelay / time.Microsecond)},
		"PreparingForShutdown": {Value: false},
	}})
	require.NoError(t, err)
	for _, name := range []string{logindName, systemdName} {
		reply, err := conn.RequestName(name, dbus.NameFlagDoNotQueue)
		require.NoError(t, err)
		require.Equal(t, dbus.RequestNameReplyPrimaryOwner, reply)
	}
	return m
}

// Inhibit is logind's.
func (m *machine) Inhibit(what, who, _, mode string) (dbus.UnixFD, *dbus.Error) {
	if what != "shutdown" || who != "kubelet" || mode != "delay" {
		return 0, dbus.MakeFailedError(errors.New("unexpected lock"))
	}
	read, write, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	m.mu.Lock()
	m.locks = append(m.locks, read)
	m.mu.Unlock()
	fd := write.Fd()
	time.AfterFunc(time.Second, func() { _ = write.Close() }) // the message is sent, and the kubelet has its own copy
	m.t.Cleanup(func() { _ = write.Close() })
	m.taken <- struct{}{}
	return dbus.UnixFD(fd), nil
}

// KillUnit is systemd's: logind reads its configuration again.
func (m *machine) KillUnit(unit, _ string, signal int32) *dbus.Error {
	content, err := os.ReadFile(filepath.Join(m.dir, dropIn))
	match := regexp.MustCompile(`(?m)^InhibitDelayMaxSec=(\d+)$`).FindSubmatch(content)
	if err != nil || unit != "systemd-logind.service" || signal != 1 || match == nil {
		return dbus.MakeFailedError(errors.New("unexpected"))
	}
	seconds, _ := strconv.Atoi(string(match[1]))
	m.props.SetMust(logindIface, "InhibitDelayMaxUSec", uint64(seconds)*1e6)
	return nil
}

// announce announces a shutdown, or its cancellation.
func (m *machine) announce(shutdown bool) {
	m.props.SetMust(logindIface, "PreparingForShutdown", shutdown)
	require.NoError(m.t, m.conn.Emit(logindPath, logindIface+".PrepareForShutdown", shutdown))
}

// waitLock waits until the kubelet has taken one more lock, and returns a channel that is closed when it is released.
func (m *machine) waitLock() <-chan struct{} {
	m.t.Helper()
	select {
	case <-m.taken:
	case <-time.After(waitTimeout):
		require.FailNow(m.t, "the kubelet takes no lock")
	}
	m.mu.Lock()
	lock := m.locks[len(m.locks)-1]
	m.mu.Unlock()
	released := make(chan struct{})
	m.waiting.Go(func() {
		_, _ = io.Copy(io.Discard, lock)
		_ = lock.Close()
		close(released)
	})
	return released
}
