//go:build integration

package containerd_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/up/containerd"
)

// BenchmarkIdleShim runs two Pods with each runtime and leaves them alone for longer than it takes a shim to return memory. It reports the
// memory of the second one's shim after that, of it what no other process has, and the CPU time of those seconds.
//
//	go test -tags integration -run '^$' -bench IdleShim -benchtime 1x ./up/containerd
func BenchmarkIdleShim(b *testing.B) {
	const idle = 20 * time.Second
	for _, runtime := range containerd.Runtimes() {
		b.Run(runtime, func(b *testing.B) {
			n := newFixture(b)
			n.start(b)
			n.importImages(b)
			data := volume(b)
			first := n.runWith(b, n.sandbox("first", b.TempDir(), false), data, runtime)
			p := n.runWith(b, n.sandbox("idle", b.TempDir(), false), data, runtime)
			shim := n.shim(b, p.sandbox)
			for b.Loop() {
				before := cpuTicks(b, shim)
				time.Sleep(idle) // that nothing happens is what this is about
				b.ReportMetric(float64(cpuTicks(b, shim)-before)*10, "cpu-ms")
				b.ReportMetric(kilobytes(b, shim, "Rss:")/1024, "MiB")
				b.ReportMetric(kilobytes(b, shim, "Private_Clean:", "Private_Dirty:")/1024, "private-MiB")
				b.ReportMetric(kilobytes(b, shim, "Anonymous:")/1024, "anonymous-MiB")
			}
			n.end(b, first)
			n.end(b, p)
			n.stop(b)
			n.clean(b)
		})
	}
}

// cpuTicks is the CPU time of a process in hundredths of a second.
func cpuTicks(b *testing.B, pid int) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(b, err)
	fields := procstat.Fields(stat)
	var user, system int
	_, err = fmt.Sscan(fields[11]+" "+fields[12], &user, &system)
	require.NoError(b, err)
	return user + system
}

// kilobytes adds up values of a process's memory.
func kilobytes(b *testing.B, pid int, names ...string) (sum float64) {
	rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	require.NoError(b, err)
	for line := range strings.Lines(string(rollup)) {
		for _, name := range names {
			if rest, found := strings.CutPrefix(line, name); found {
				var value float64
				_, err := fmt.Sscan(rest, &value)
				require.NoError(b, err)
				sum += value
			}
		}
	}
	return sum
}
