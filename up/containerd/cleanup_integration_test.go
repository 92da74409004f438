//go:build integration

package containerd_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/testnet"
	"github.com/berth-dev/berth/internal/testproc"
)

// resources are what a node makes outside of the test's process, however far its test comes.
func (n *fixture) resources() testproc.Resources {
	return testproc.Resources{
		Dirs: []string{n.RunDir, filepath.Dir(filepath.Dir(n.Root))}, Cgroups: []string{strings.TrimPrefix(n.cgroup, "/")}, Links: []string{n.Bridge},
		Files: []string{n.NetworkCache()}, // or the next run takes it for its own
	}
}

// cleanup removes whatever is left of the node. After a test that passed there is nothing.
func (n *fixture) cleanup(t testing.TB) {
	require.NoError(t, n.resources().Cleanup(context.WithoutCancel(t.Context()), waitTimeout))
}

// firewallRules are those of the firewall's table of addresses that name the node's bridge.
func (n *fixture) firewallRules(t testing.TB) []string {
	if n.Machine.Firewall != "iptables" {
		return nil
	}
	rules, err := n.resources().FirewallRules(context.WithoutCancel(t.Context()))
	require.NoError(t, err)
	return rules
}

// natTable is the firewall's table of addresses, as iptables lists it.
func (n *fixture) natTable(t testing.TB) string {
	out, err := exec.CommandContext(t.Context(), "iptables", "-w", "60", "-t", "nat", "-S").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// failsVariable makes TestThatFails run, and says how it ends; networkVariable is the network that its caller has claimed.
const failsVariable, networkVariable = "BERTH_TEST_FAILS", "BERTH_TEST_NETWORK"

// TestThatFails fails while a Pod runs whose containerd has been killed: nothing of the Pod can be ended in order. Or it
// waits there until it is ended.
func TestThatFails(t *testing.T) {
	how := os.Getenv(failsVariable)
	if how == "" {
		t.Skip("the tests of what such a test leaves run it")
	}
	network, err := strconv.Atoi(os.Getenv(networkVariable))
	require.NoError(t, err)
	n := newFixtureOn(t, network)
	n.start(t)
	n.importImages(t)
	require.NoError(t, n.Masquerade(t.Context()))
	n.run(t, n.sandbox("left", t.TempDir(), false), volume(t))
	n.kill(t)
	require.NotEmpty(t, n.leftovers(t), "or there is nothing to wipe")
	require.GreaterOrEqual(t, len(n.firewallRules(t)), 3, "the cluster's, the Pod's, and that of the Pod's chain")
	fmt.Println("runs in", n.RunDir)
	if how == "wait" {
		time.Sleep(waitTimeout) // it does not come to its end
	}
	t.Fatal("as it should")
}

// TestAFailedTestLeavesNothing is about the tests themselves: what one leaves that failed is in the way of the next.
func TestAFailedTestLeavesNothing(t *testing.T) {
	f := newFailingRun(t, "yes")
	out, err := f.command.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "as it should")
	f.requireNothing(string(out))
}

// TestAnEndedTestLeavesNothing ends a test as whoever runs it may: it cannot clean up.
func TestAnEndedTestLeavesNothing(t *testing.T) {
	for _, sign := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(sign.String(), func(t *testing.T) {
			f := newFailingRun(t, "wait")
			out, err := f.command.StdoutPipe()
			require.NoError(t, err)
			f.command.Stderr = f.command.Stdout // which the guard holds until it has done its work
			require.NoError(t, f.command.Start())
			var said strings.Builder
			for lines := bufio.NewScanner(out); lines.Scan(); {
				fmt.Fprintln(&said, lines.Text())
				if strings.HasPrefix(lines.Text(), "runs in ") {
					require.NoError(t, f.command.Process.Signal(sign))
				}
			}
			require.Error(t, f.command.Wait(), "it was ended")
			require.NotContains(t, said.String(), "as it should")
			f.requireNothing(said.String())
		})
	}
}

// failingRun is a run of TestThatFails.
type failingRun struct {
	t       testing.TB
	network int
	ours    *fixture // never started; it looks, and wipes what it finds
	dir     string
	command *exec.Cmd
	theirs  string // its directory, once it is printed
}

func newFailingRun(t testing.TB, how string) *failingRun {
	f := &failingRun{t: t, network: testnet.Claim(t)}
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(f.theirs)) }) // when nothing is mounted there any more
	f.ours, f.dir = newFixtureOn(t, f.network), t.TempDir()
	f.command = exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestThatFails$", "-test.v")
	f.command.Env = append(os.Environ(), failsVariable+"="+how, networkVariable+"="+strconv.Itoa(f.network), "TMPDIR="+f.dir)
	return f
}

func (f *failingRun) requireNothing(out string) {
	f.t.Helper()
	match := regexp.MustCompile(`(?m)^runs in (/run/berth-\S+)$`).FindStringSubmatch(out)
	require.NotNil(f.t, match, "%s", out)
	f.theirs = match[1]
	require.NoError(f.t, os.RemoveAll(f.ours.RunDir))
	f.ours.RunDir, f.ours.cgroup = f.theirs, "/"+filepath.Base(f.theirs)
	require.Empty(f.t, f.ours.resources().Processes())
	require.Empty(f.t, f.ours.firewallRules(f.t))
	require.NotContains(f.t, f.ours.natTable(f.t), fmt.Sprintf(" 10.%d.0.", f.network), "the chain of a Pod")
	require.Empty(f.t, f.ours.cgroups(f.t))
	require.Empty(f.t, glob(f.t, f.ours.NetworkCache()))
	require.NoDirExists(f.t, "/sys/class/net/"+f.ours.Bridge)
	require.NoDirExists(f.t, f.theirs)
	require.Empty(f.t, glob(f.t, f.dir+"/*"))
}
