//go:build integration

package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/loopdev"
	"github.com/berth-dev/berth/internal/pidfile"
)

// footprint is what a cluster has of what it must release.
type footprint map[string]int

func (s *soak) footprint() footprint {
	s.t.Helper()
	found := make(footprint)
	for _, child := range []string{"node", "containerd", "controlplane"} {
		pid := pidfile.Running(pidfile.Proc, filepath.Join(s.runDir(), child+".pid"))
		require.NotZero(s.t, pid, child)
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		descriptors, err := os.ReadDir(filepath.Join(dir, "fd"))
		require.NoError(s.t, err)
		found["descriptors of "+child] = len(descriptors)
		for line := range strings.Lines(string(readFile(s.t, filepath.Join(dir, "status")))) {
			for name, key := range map[string]string{"RssAnon:": "KiB of ", "Threads:": "threads of "} {
				if text, ok := strings.CutPrefix(line, name); ok {
					found[key+child], err = strconv.Atoi(strings.Fields(text)[0])
					require.NoError(s.t, err)
				}
			}
		}
	}
	for name, path := range map[string]string{"controlplane": "/metrics", "node": "/api/v1/nodes/" + homeNode + "/proxy/metrics"} {
		for line := range strings.Lines(s.mustRun("kubectl", "get", "--raw", path)) {
			if text, ok := strings.CutPrefix(line, "go_goroutines "); ok {
				number, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
				require.NoError(s.t, err)
				found["goroutines of "+name] = int(number)
			}
		}
		require.NotZero(s.t, found["goroutines of "+name])
	}
	for line := range strings.Lines(string(readFile(s.t, "/proc/self/mounts"))) {
		if strings.Contains(line, s.dataDir) || strings.Contains(line, s.runDir()) {
			found["mounts"]++
		}
	}
	devices, err := loopdev.New().List(func(backing string) bool { return strings.HasPrefix(backing, s.dataDir) })
	require.NoError(s.t, err)
	found["loop devices"] = len(devices)
	roots, err := filepath.Glob("/sys/fs/cgroup/*/berth-" + s.id())
	require.NoError(s.t, err)
	for _, root := range append(roots, "/sys/fs/cgroup/berth-"+s.id()) {
		_ = filepath.WalkDir(root, func(_ string, entry os.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				found["cgroups"]++
			}
			return nil
		})
	}
	return found
}

// requireFootprint waits until the cluster has the same mounts, cgroups and loop devices as before, and no process many more descriptors,
// threads and goroutines or much more memory.
func (s *soak) requireFootprint(before footprint) {
	s.t.Helper()
	var more []string
	require.NoError(s.t, s.poll(func(context.Context) bool {
		more = nil
		now := s.footprint()
		for what, count := range now {
			limit := before[what]
			switch kind, _, _ := strings.Cut(what, " "); kind {
			case "KiB":
				limit = 2*limit + 64<<10
			case "descriptors":
				limit += 30
			case "threads": // a process keeps those of its busiest moment, as when containerd starts and cleans up
				limit += 80
			case "goroutines":
				limit += limit/4 + 50
			}
			if count > limit {
				more = append(more, fmt.Sprintf("%s: %d, before %d", what, count, before[what]))
			}
		}
		if len(more) == 0 {
			s.t.Logf("before %v, after %v", before, now)
		}
		return len(more) == 0
	}), "the cluster has more than at its beginning: %v", &more)
}
