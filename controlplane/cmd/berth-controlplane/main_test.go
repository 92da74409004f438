package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// helperProcessEnv makes TestHelperProcess the process that the other test sends signals to.
const helperProcessEnv = "BERTH_CONTROLPLANE_TEST_HELPER"

// TestHelperProcess stops as main does; the stop lasts while its standard input is open.
func TestHelperProcess(t *testing.T) {
	if os.Getenv(helperProcessEnv) == "" {
		t.Skip("TestClosedTerminalStopsInOrder runs it")
	}
	ctx, cancel := stopContext()
	defer cancel()
	fmt.Println("running")
	<-ctx.Done()
	fmt.Println("stopping")
	_, _ = bufio.NewReader(os.Stdin).ReadByte() // until it is closed
}

// TestClosedTerminalStopsInOrder sends the two SIGHUPs of one closed terminal, with and without nohup.
func TestClosedTerminalStopsInOrder(t *testing.T) {
	for first, after := range map[string]syscall.Signal{"": syscall.SIGHUP, "trap '' HUP; ": syscall.SIGTERM} {
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", first+`exec "$0" -test.run='^TestHelperProcess$'`, os.Args[0])
		cmd.Env = append(os.Environ(), helperProcessEnv+"=yes")
		stdout, err := cmd.StdoutPipe()
		require.NoError(t, err)
		stdin, err := cmd.StdinPipe()
		require.NoError(t, err)
		caught := make(chan os.Signal, 1) // what is caught here is not ignored in the child, however this test was started
		signal.Notify(caught, syscall.SIGHUP)
		err = cmd.Start()
		signal.Stop(caught)
		require.NoError(t, err)
		lines := bufio.NewScanner(stdout)
		require.True(t, lines.Scan() && lines.Text() == "running", "it printed %q", lines.Text())
		require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
		require.NoError(t, cmd.Process.Signal(after))
		require.True(t, lines.Scan() && lines.Text() == "stopping", "it printed %q", lines.Text())
		require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
		require.NoError(t, stdin.Close())
		require.True(t, lines.Scan())
		require.NoError(t, cmd.Wait())
	}
}
