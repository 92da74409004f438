//go:build integration

package integration

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/testproc"
	"github.com/berth-dev/berth/up"
)

// cleanup removes what is left of the cluster of a failed test, as `berth doctor --fix` does, because the next test may use
// the same network.
func (c *cluster) cleanup() {
	ctx := context.WithoutCancel(c.t.Context()) // which has ended when a test cleans up
	for pid := range c.processes() {
		testproc.KillAndWait(c.t, pid, waitTimeout)
	}
	dead, err := up.FindLeftovers(ctx)
	require.NoError(c.t, err)
	for _, remains := range dead {
		if remains.ID == c.id() {
			require.NoError(c.t, remains.Remove(ctx))
		}
	}
}

// failsVariable makes TestThatFails run, and selects how it ends.
const failsVariable = "BERTH_TEST_FAILS"

// TestThatFails starts a cluster with a Pod on a disk, kills berth and fails, or waits until it is stopped.
func TestThatFails(t *testing.T) {
	how := os.Getenv(failsVariable)
	if how == "" {
		t.Skip("the tests of the cleanup run it")
	}
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	c.apply(doctorManifest)
	c.waitPod("app=patient", "ready", isReady)
	c.noteLinks()
	fmt.Println("runs in", c.dataDir)
	if how == "wait" {
		time.Sleep(waitTimeout) // it does not come to its end
	}
	c.killBerth()
	require.NotEmpty(t, c.leftovers(), "or there is nothing to clean up")
	require.NotEmpty(t, c.hostLeftovers(), "or there is nothing to clean up")
	t.Fatal("as it should")
}

func TestAFailedTestLeavesNoCluster(t *testing.T) {
	command := failingTestCommand(t, "yes")
	out, err := command.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "as it should")
	requireNoCluster(t, string(out))
}

// TestAnEndedTestLeavesNoCluster ends a test with a signal, so that it cannot clean up.
func TestAnEndedTestLeavesNoCluster(t *testing.T) {
	command := failingTestCommand(t, "wait")
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	command.Stderr = command.Stdout // which the guard holds until it has done its work
	require.NoError(t, command.Start())
	var printed strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		fmt.Fprintln(&printed, lines.Text())
		if strings.HasPrefix(lines.Text(), "runs in ") {
			require.NoError(t, command.Process.Signal(syscall.SIGTERM))
		}
	}
	require.Error(t, command.Wait(), "it was ended")
	require.NotContains(t, printed.String(), "as it should")
	requireNoCluster(t, printed.String())
}

// failingTestCommand is a run of TestThatFails.
func failingTestCommand(t *testing.T, how string) *exec.Cmd {
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestThatFails$", "-test.v")
	command.Env = append(os.Environ(), failsVariable+"="+how, "TMPDIR="+shortDir(t))
	return command
}

func requireNoCluster(t *testing.T, out string) {
	t.Helper()
	match := regexp.MustCompile(`(?m)^runs in (/\S+)$`).FindStringSubmatch(out)
	require.NotNil(t, match, "%s", out)
	theirs := &cluster{t: t, dataDir: match[1]}
	t.Cleanup(theirs.cleanup)
	require.Empty(t, theirs.leftovers())
	require.Empty(t, theirs.hostLeftovers())
	require.NoDirExists(t, theirs.dataDir)
}
