//go:build integration

package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/testproc"
	"github.com/berth-dev/berth/up"
)

// wipe takes away what is left of the cluster of a test that failed, as `berth doctor --fix` does: it is in the way of the
// next test on the same network.
func (c *cluster) wipe() {
	ctx := context.WithoutCancel(c.t.Context()) // which is over when a test cleans up
	for pid := range c.processes() {
		testproc.KillAndWait(c.t, pid, patience)
	}
	dead, err := up.Leftovers(ctx)
	require.NoError(c.t, err)
	for _, remains := range dead {
		if remains.ID == c.id() {
			require.NoError(c.t, remains.Remove(ctx))
		}
	}
}

// failsVariable makes TestThatFails fail.
const failsVariable = "BERTH_TEST_FAILS"

// TestThatFails fails with a Pod on a disk whose cluster has just lost its berth.
func TestThatFails(t *testing.T) {
	if os.Getenv(failsVariable) == "" {
		t.Skip("TestAFailedTestLeavesNoCluster runs it")
	}
	c := newCluster(t, 177)
	c.up("--unsafe-no-fsync")
	c.apply(doctorsPatients)
	c.waitPod("app=patient", "ready", isReady)
	c.noteLinks()
	fmt.Println("runs in", c.dataDir)
	c.killBerth()
	require.NotEmpty(t, c.leftovers(), "or there is nothing to wipe")
	require.NotEmpty(t, c.beyond(), "or there is nothing to wipe")
	t.Fatal("as it should")
}

func TestAFailedTestLeavesNoCluster(t *testing.T) {
	dir, err := os.MkdirTemp("", "") // short, for there are sockets in it
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestThatFails$")
	command.Env = append(os.Environ(), failsVariable+"=yes", "TMPDIR="+dir)
	out, err := command.CombinedOutput()
	require.Error(t, err)
	match := regexp.MustCompile(`(?m)^runs in (/\S+)$`).FindSubmatch(out)
	require.NotNil(t, match, "%s", out)
	theirs := &cluster{t: t, dataDir: string(match[1])}
	t.Cleanup(theirs.wipe)
	require.Contains(t, string(out), "as it should")
	require.Empty(t, theirs.leftovers())
	require.Empty(t, theirs.beyond())
	require.NoDirExists(t, theirs.dataDir)
}
