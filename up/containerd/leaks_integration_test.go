//go:build integration

package containerd_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var (
	leakExecs = flag.Int("leak-execs", 60, "how many commands TestManyExecsAndPodsLeaveNothing runs in a container")
	leakPods  = flag.Int("leak-pods", 16, "how many Pods TestManyExecsAndPodsLeaveNothing starts and removes")
)

// atOnce is how many of them run at the same time.
const atOnce = 8

// TestManyExecsAndPodsLeaveNothing compares what the node has after a few execs and Pods with what it has after many: in containerd, in
// the shim of a Pod that runs all the time, and on the machine. The runtime is that of BERTH_TEST_RUNTIME.
func TestManyExecsAndPodsLeaveNothing(t *testing.T) {
	n := newFixture(t)
	p, shim, _ := n.runOne(t, "stays")
	data, logs := volume(t), t.TempDir()
	execs := func(count int) {
		n.parallel(t, count, func(ctx context.Context, i int) error {
			out, err := n.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: p.container, Cmd: []string{"/demo", "-v"}, Timeout: 60})
			if err == nil && (out.ExitCode != 0 || string(out.Stdout) != "demo dev\n") {
				err = fmt.Errorf("exec %d ended with %d and printed %q", i, out.ExitCode, out.Stdout)
			}
			return err
		})
	}
	pods := func(count int) {
		n.parallel(t, count, func(_ context.Context, i int) error {
			n.end(t, n.run(t, n.sandbox(fmt.Sprint("life", i), logs, false), data))
			return nil
		})
	}
	execs(2 * atOnce)
	pods(2 * atOnce)
	before := n.steadyHoldings(t, shim)
	began := time.Now()
	execs(*leakExecs)
	ran := time.Since(began)
	pods(*leakPods)
	t.Logf("%d execs in %s, %d Pods in %s", *leakExecs, ran, *leakPods, time.Since(began)-ran)
	var after nodeHoldings
	require.Eventually(t, func() bool {
		after = n.steadyHoldings(t, shim)
		return after.within(before)
	}, waitTimeout, time.Second, "before: %+v", before)
	t.Logf("before: %+v", before)
	t.Logf("after:  %+v", after)
	n.end(t, p)
	n.stop(t)
	n.requireNothingLeft(t)
	n.clean(t)
}

// parallel runs one for each of count numbers, some at a time.
func (n *fixture) parallel(t testing.TB, count int, one func(ctx context.Context, i int) error) {
	t.Helper()
	all, ctx := errgroup.WithContext(t.Context())
	all.SetLimit(atOnce)
	for i := range count {
		all.Go(func() error { return one(ctx, i) })
	}
	require.NoError(t, all.Wait())
}

// nodeHoldings is what a node holds while one Pod runs.
type nodeHoldings struct {
	Containerd, Shim process
	Shims            int
	Mounts           int
	Cgroups          int
	Files            int
}

// process is what a process holds. Goroutines are those of its dump.
type process struct{ Descriptors, Threads, Goroutines int }

// within reports whether nothing has accumulated since before. Threads of Go and idle connections come and go.
func (h nodeHoldings) within(before nodeHoldings) bool {
	grown := func(now, then process) bool {
		return now.Descriptors > then.Descriptors+4 || now.Threads > then.Threads+12 || now.Goroutines > then.Goroutines+8
	}
	return h.Shims == before.Shims && h.Mounts == before.Mounts && h.Cgroups == before.Cgroups && h.Files == before.Files &&
		!grown(h.Containerd, before.Containerd) && !grown(h.Shim, before.Shim)
}

// steadyHoldings reads the nodeHoldings when two readings in a row are the same, or their last value: what has ended may still be on its way.
func (n *fixture) steadyHoldings(t testing.TB, shim int) (now nodeHoldings) {
	t.Helper()
	for range 60 {
		last := now
		if now = n.nodeHoldings(t, shim); now == last {
			break
		}
		time.Sleep(time.Second) // nothing reports that all is quiet
	}
	return now
}

func (n *fixture) nodeHoldings(t testing.TB, shim int) (h nodeHoldings) {
	t.Helper()
	mounts, err := mountinfo.GetMounts(nil)
	require.NoError(t, err)
	for _, mount := range mounts {
		if strings.HasPrefix(mount.Mountpoint, n.RunDir) || strings.HasPrefix(mount.Mountpoint, n.Root) {
			h.Mounts++
		}
	}
	for _, file := range glob(t, "/proc/[0-9]*/cmdline") {
		command, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(command), "containerd-shim") && strings.Contains(string(command), n.RunDir) {
			h.Shims++
		}
	}
	for _, dir := range n.cgroups(t) {
		if containerCgroup.MatchString(dir) {
			h.Cgroups++
		}
	}
	for _, pattern := range []string{"/runc/k8s.io/*", "/s/*", "/exits/*", "/addresses/*/10.*", "/containerd/*/netns/*", "/containerd/*/sandboxes/*",
		"/containerd/*/containers/*", "/containerd/io.containerd.runtime.v2.task/k8s.io/*"} {
		h.Files += len(glob(t, n.RunDir+pattern))
	}
	h.Containerd, h.Shim = n.processHoldings(t, n.daemon.Process.Pid), n.processHoldings(t, shim)
	return h
}

var containerCgroup = regexp.MustCompile(`/[0-9a-f]{64}$`)

// goroutineDump matches the head of each goroutine in a dump.
var goroutineDump = regexp.MustCompile(`goroutine \d+ (?:gp=\S+ m=\S+ (?:mp=\S+ )?)?\[`)

// processHoldings has the process, containerd or a shim, dump its goroutines into containerd's log, and counts them.
func (n *fixture) processHoldings(t testing.TB, pid int) process {
	t.Helper()
	offset, err := n.log.Seek(0, io.SeekEnd)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGUSR1))
	var counts []int
	for range 200 { // until the dump is complete: its size stays
		data := make([]byte, 4<<20)
		size, _ := n.log.ReadAt(data, offset) // it ends where the log does
		counts = append(counts, len(goroutineDump.FindAll(data[:size], -1)))
		if last := counts[max(0, len(counts)-5):]; len(last) == 5 && last[0] > 0 && slices.Min(last) == slices.Max(last) {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	return process{
		Descriptors: len(glob(t, fmt.Sprintf("/proc/%d/fd/*", pid))), Threads: len(glob(t, fmt.Sprintf("/proc/%d/task/*", pid))),
		Goroutines: counts[len(counts)-1],
	}
}
