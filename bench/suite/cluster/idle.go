package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/bench/testbed"
)

const (
	afterStart = time.Minute // from ready to the measurement: the work of the start is done by then
	idleTime   = 3 * time.Minute
)

// idleParts are the processes of a cluster, by how the metrics call them.
var idleParts = []struct{ title, program string }{
	{"the supervisor", ""}, // the process itself
	{"berth", "berth"},
	{"the control plane", "berth-controlplane"},
	{"containerd", "containerd"},
	{"kube-proxy", "kube-proxy"},
	{"DNS", "berth-dns"},
}

// Idle measures a whole cluster in which nothing changes.
func Idle() harness.Benchmark {
	metrics := []harness.Metric{
		{Name: "CPU in all", Unit: "s/min", Better: harness.Lower},
		{Name: "memory in all", Unit: "MiB", Better: harness.Lower},
		{Name: "memory of kube-proxy and DNS", Unit: "MiB", Better: harness.Lower},
	}
	for _, part := range idleParts {
		metrics = append(metrics,
			harness.Metric{Name: "CPU of " + part.title, Unit: "s/min", Better: harness.Lower},
			harness.Metric{Name: "memory of " + part.title, Unit: "MiB", Better: harness.Lower},
			harness.Metric{Name: "private memory of " + part.title, Unit: "MiB", Better: harness.Lower})
	}
	return harness.Benchmark{
		Name: "cluster-idle", Title: "Idle cluster", Budget: 5 * time.Minute,
		About: "`berth up` with all of its components and without Pods, a minute after its start: the CPU time of each of its" +
			" processes over the next three minutes, and then their memory. A page that several processes share, such as those" +
			" of the program that is both the control plane and kube-proxy, counts in equal parts for each; *private* is" +
			" what belongs to no file.",
		Missing: missing,
		Cases: []harness.Case{{
			Name: "no Pods", Metrics: metrics, Rounds: 2, Timeout: 10 * time.Minute,
			Targets: []harness.Target{
				{Metric: "CPU in all", Ratio: 0.8}, {Metric: "memory in all", Ratio: 400}, {Metric: "memory of kube-proxy and DNS", Ratio: 80},
			},
			Variants: []harness.Variant{{Name: ours, Run: idle}},
		}},
	}
}

func idle(ctx context.Context, s *harness.Sample) (err error) {
	dir, err := os.MkdirTemp(s.Paths.Dir, "idle-")
	if err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	up := testbed.Up{Bin: s.Paths.Bin, Dir: dir, Network: network, NodeName: nodeName, Services: true}
	cluster, err := up.Start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Stop()) }()
	pids, err := idlePIDs(cluster)
	if err != nil {
		return err
	}
	if err := harness.Pause(ctx, afterStart); err != nil {
		return err
	}
	idling, err := testbed.MeasureIdle(ctx, pids, idleTime)
	if err != nil {
		return err
	}
	var cpu, memory, services float64
	for i, part := range idleParts {
		seconds := idling[i].SecondsPerMinute()
		used, err := testbed.MemoryOf(pids[i])
		if err != nil {
			return err
		}
		size := float64(used.Proportional) / (1 << 20)
		s.Set("CPU of "+part.title, seconds)
		s.Set("memory of "+part.title, size)
		s.Set("private memory of "+part.title, float64(used.Private)/(1<<20))
		cpu, memory = cpu+seconds, memory+size
		if part.title == "kube-proxy" || part.title == "DNS" {
			services += size
		}
	}
	s.Set("CPU in all", cpu)
	s.Set("memory in all", memory)
	s.Set("memory of kube-proxy and DNS", services)
	return nil
}

// idlePIDs are the processes of idleParts.
func idlePIDs(cluster *testbed.Process) ([]int, error) {
	children, err := testbed.Children(cluster.PID)
	if err != nil {
		return nil, err
	}
	pids := make([]int, len(idleParts))
	for i, part := range idleParts {
		if pids[i] = children[part.program]; part.program == "" {
			pids[i] = cluster.PID
		}
		if pids[i] == 0 {
			return nil, fmt.Errorf("berth up runs no %s: %v", part.program, children)
		}
	}
	return pids, nil
}
