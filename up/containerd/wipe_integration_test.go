//go:build integration

package containerd_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/testproc"
	"github.com/berth-dev/berth/volume/mounts"
)

// wipe takes away whatever is left of the node, however far its test came before it failed: processes, mounts, cgroups,
// the bridge, addresses given out, and rules of the firewall. After a test that passed there is nothing.
func (n *node) wipe(t testing.TB) {
	for _, pid := range n.processes(t) {
		testproc.KillAndWait(t, pid, patience)
	}
	for _, dir := range []string{n.RunDir, n.Root} {
		left, err := mounts.Under(dir)
		require.NoError(t, err)
		for _, path := range left {
			require.NoError(t, unix.Unmount(path, unix.MNT_DETACH))
		}
	}
	for _, result := range glob(t, n.NetworkCache()) {
		require.NoError(t, os.Remove(result)) // or the next run takes it for its own
	}
	n.clean(t)
	n.wipeRules(t)
}

// processes are those that name the node's directory, and those of its Pods.
func (n *node) processes(t testing.TB) []int {
	var found []int
	for _, file := range glob(t, "/proc/[0-9]*/cmdline") {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		require.NoError(t, err)
		if _, err := os.Readlink(filepath.Join(filepath.Dir(file), "exe")); err != nil {
			continue // it has ended, and its parent has not asked how
		}
		command, _ := os.ReadFile(file) // it may end meanwhile
		groups, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "cgroup"))
		if pid != os.Getpid() && (bytes.Contains(command, []byte(n.RunDir)) || bytes.Contains(groups, []byte(n.cgroup+"/"))) {
			found = append(found, pid)
		}
	}
	return found
}

// rules are those of the firewall's table of addresses that name the node's bridge, as iptables lists them: with the
// words of a command that adds them.
func (n *node) rules(t testing.TB) []string {
	if n.Machine.Firewall != "iptables" {
		return nil
	}
	names := regexp.MustCompile(`\b` + n.Bridge + `\b`)
	var found []string
	for line := range strings.Lines(n.iptables(t, "-S")) {
		if line = strings.TrimSpace(line); names.MatchString(line) {
			found = append(found, line)
		}
	}
	return found
}

// iptables has a shell take the words apart, since some are quoted.
func (n *node) iptables(t testing.TB, words string) string {
	command := exec.CommandContext(context.WithoutCancel(t.Context()), "/bin/sh", "-c", "iptables -w 5 -t nat "+words)
	out, err := command.CombinedOutput()
	require.NoError(t, err, "iptables %s: %s", words, out)
	return string(out)
}

// ownChain is a chain that the network plugins make for one Pod; they share those whose names say HOSTPORT.
var ownChain = regexp.MustCompile(`\bCNI-(?:DN-|SN-)?[0-9a-f]{20,}\b`)

// wipeRules removes the rules, and the chains of Pods that they stand in or lead to.
func (n *node) wipeRules(t testing.TB) {
	chains := make(map[string]bool)
	for _, rule := range n.rules(t) {
		for _, chain := range ownChain.FindAllString(rule, -1) {
			chains[chain] = true
		}
		if words := strings.Fields(rule); !ownChain.MatchString(words[1]) {
			n.iptables(t, "-D"+strings.TrimPrefix(rule, "-A"))
		}
	}
	for chain := range chains {
		n.iptables(t, "-F "+chain)
		n.iptables(t, "-X "+chain)
	}
}

// failsVariable makes TestThatFails fail, and has the directory for what it makes.
const failsVariable = "BERTH_TEST_FAILS"

const failingNet = 17

// TestThatFails fails while a Pod runs whose containerd has been killed: nothing of the Pod can be ended in order.
func TestThatFails(t *testing.T) {
	if os.Getenv(failsVariable) == "" {
		t.Skip("TestAFailedTestLeavesNothing runs it")
	}
	n := newNode(t, failingNet)
	n.start(t)
	n.images(t)
	require.NoError(t, n.Masquerade(t.Context()))
	n.run(t, n.sandbox("left", t.TempDir(), false), volume(t))
	n.kill(t)
	require.NotEmpty(t, n.leftovers(t), "or there is nothing to wipe")
	require.GreaterOrEqual(t, len(n.rules(t)), 3, "the cluster's, the Pod's, and that of the Pod's chain")
	fmt.Println("runs in", n.RunDir)
	t.Fatal("as it should")
}

// TestAFailedTestLeavesNothing is about the tests themselves: what one leaves that failed is in the way of the next.
func TestAFailedTestLeavesNothing(t *testing.T) {
	theirs := ""
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(theirs)) }) // when nothing is mounted there any more
	ours := newNode(t, failingNet)                                 // never started; it looks, and wipes what it finds
	dir := t.TempDir()
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestThatFails$")
	command.Env = append(os.Environ(), failsVariable+"=yes", "TMPDIR="+dir)
	out, err := command.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "as it should")
	match := regexp.MustCompile(`(?m)^runs in (/run/berth-\S+)$`).FindSubmatch(out)
	require.NotNil(t, match, "%s", out)
	theirs = string(match[1])
	ours.RunDir = theirs

	require.Empty(t, ours.processes(t))
	require.Empty(t, ours.rules(t))
	require.NotContains(t, ours.iptables(t, "-S"), "10.199.17.", "the chain of a Pod")
	require.Empty(t, ours.cgroups(t))
	require.Empty(t, glob(t, ours.NetworkCache()))
	require.NoDirExists(t, "/sys/class/net/"+ours.Bridge)
	require.NoDirExists(t, ours.RunDir)
	left, err := mounts.Under(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}
