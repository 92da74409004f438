//go:build integration

package integration

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// terminal opens a new terminal: the end of the test, and that of the programs on it.
func terminal(t testing.TB) (own, programs *os.File) {
	t.Helper()
	own, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = own.Close() }) // it may be closed already
	require.NoError(t, unix.IoctlSetPointerInt(int(own.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(own.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	programs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	return own, programs
}

// catchHangups makes programs that are started before end is called receive SIGHUP: a signal that is caught here is not
// ignored there, and these tests may run under nohup.
func catchHangups() (end func()) {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP)
	return func() { signal.Stop(caught) }
}

// TestAClosedTerminalStopsTheCluster closes the terminal that `berth up` runs on.
func TestAClosedTerminalStopsTheCluster(t *testing.T) {
	c := newCluster(t)
	own, programs := terminal(t)
	cmd := exec.CommandContext(t.Context(), c.berth, append([]string{"up"}, c.args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = programs, programs, programs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	defer catchHangups()()
	require.NoError(t, cmd.Start())
	require.NoError(t, programs.Close())
	lines := bufio.NewScanner(own)
	for lines.Scan() && !strings.Contains(lines.Text(), "is ready after") {
		continue
	}
	require.NoError(t, lines.Err())
	c.noteLinks()
	require.NoError(t, own.Close())
	require.NoError(t, cmd.Wait())
	require.Empty(t, c.leftovers())
	require.Empty(t, c.hostLeftovers())
}
