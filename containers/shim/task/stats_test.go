package task

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	stats1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	stats2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"
)

// TestStatsAreTheContainers reads the use of resources of a container whose first process has moved to a cgroup below the container's, as
// systemd, Docker and k3s do in a container.
func TestStatsAreTheContainers(t *testing.T) {
	f := newFixture(t)
	f.run(t, "c", nil, []string{"/bin/sleep", "1000"})
	if _, err := f.Update(t.Context(), &api.UpdateTaskRequest{ID: "c", Resources: &anypb.Any{Value: []byte(`{"pids":{"limit":77}}`)}}); err != nil {
		t.Fatal(err)
	}
	pid := f.pid(t, "c", "")
	// A started container is runc's first process for a moment more, which has threads, and cgroups of version 1 count them.
	eventually(t, "the container's program runs", func() bool {
		name, err := os.ReadFile(filepath.Join("/proc", pid, "comm"))
		return err == nil && string(name) == "sleep\n"
	})
	for _, cgroup := range cgroupsOf(filepath.Base(f.dir)) {
		own := filepath.Join(cgroup, "c")
		if !exists(own) {
			continue
		}
		inner := filepath.Join(own, "inner")
		if err := os.Mkdir(inner, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"cpuset.mems", "cpuset.cpus"} { // cpusets of version 1 begin empty
			if data, err := os.ReadFile(filepath.Join(own, file)); err == nil && len(data) > 1 {
				_ = os.WriteFile(filepath.Join(inner, file), data, 0o644)
			}
		}
		if err := os.WriteFile(filepath.Join(inner, "cgroup.procs"), []byte(pid), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	response, err := f.Stats(t.Context(), &api.StatsRequest{ID: "c"})
	if err != nil {
		t.Fatal(err)
	}
	values, err := typeurl.UnmarshalAny(response.Stats)
	if err != nil {
		t.Fatal(err)
	}
	var pids string
	switch values := values.(type) {
	case *stats1.Metrics:
		pids = fmt.Sprint(values.GetPids().GetCurrent(), " of ", values.GetPids().GetLimit())
	case *stats2.Metrics:
		pids = fmt.Sprint(values.GetPids().GetCurrent(), " of ", values.GetPids().GetLimit())
	}
	if pids != "1 of 77" {
		t.Errorf("the stats are not the container's: processes %q", pids)
	}
	f.end("c")
	for _, cgroup := range cgroupsOf(filepath.Base(f.dir)) {
		if exists(filepath.Join(cgroup, "c")) {
			t.Errorf("left: %s", cgroup)
		}
	}
}
