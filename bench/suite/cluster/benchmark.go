package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/bench/testbed"
)

const (
	ours     = "berth up"
	restTime = 15 * time.Second // from ready to when memory is looked at
	nodeName = "bench"
)

var network = testbed.Network{PodCIDR: "10.217.0.0/24", ServiceCIDR: "10.218.0.0/24"}

// Benchmark measures the start of a whole cluster.
func Benchmark() harness.Benchmark {
	memory := func(what string) harness.Metric {
		return harness.Metric{Name: "memory of " + what, Unit: "MiB", Better: harness.Lower}
	}
	return harness.Benchmark{
		Name: "cluster", Title: "Cluster start", Budget: time.Minute,
		About: "`berth up` with all binaries built: from the start of the process to its report that the node is ready," +
			" with an empty data directory and then, after an orderly stop, with the same one; and the resident memory of its" +
			" processes 15 s later, without Pods. (control plane: etcd, kube-apiserver, kube-controller-manager and" +
			" kube-scheduler in one process. berth: kubelet and controllers.)",
		Missing: func(site harness.Paths) string {
			return testbed.Missing(site.Bin, "berth", "berth-controlplane", "containerd", "runc", "images/pause")
		},
		Cases: []harness.Case{{
			Name: "to a ready node",
			Metrics: []harness.Metric{
				{Name: "first start", Unit: "s", Better: harness.Lower},
				{Name: "start again", Unit: "s", Better: harness.Lower},
				{Name: "stop", Unit: "s", Better: harness.Lower},
				memory("berth"), memory("the control plane"), memory("containerd"),
			},
			Targets:  []harness.Target{{Metric: "first start", Ratio: 6}, {Metric: "start again", Ratio: 4}},
			Variants: []harness.Variant{{Name: ours, Run: run}},
		}},
	}
}

func run(ctx context.Context, s *harness.Sample) (err error) {
	dir, err := os.MkdirTemp(s.Paths.Dir, "up-")
	if err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	up := testbed.Up{Bin: s.Paths.Bin, Dir: dir, Network: network, NodeName: nodeName}
	defer func() { err = errors.Join(err, os.RemoveAll(filepath.Join(dir, "data"))) }()
	for _, metric := range []string{"first start", "start again"} {
		began := time.Now()
		cluster, err := up.Start(ctx)
		if err != nil {
			return err
		}
		s.Set(metric, time.Since(began).Seconds())
		if metric == "first start" {
			began = time.Now()
			if err := cluster.Stop(); err != nil {
				return err
			}
			s.Set("stop", time.Since(began).Seconds())
			continue
		}
		if err := weigh(ctx, s, cluster); err != nil {
			return errors.Join(err, cluster.Stop())
		}
		if err := cluster.Stop(); err != nil {
			return err
		}
	}
	return nil
}

// weigh looks at the memory of the cluster's processes.
func weigh(ctx context.Context, s *harness.Sample, cluster *testbed.Process) error {
	if err := harness.Pause(ctx, restTime); err != nil {
		return err
	}
	children, err := testbed.Children(cluster.PID)
	if err != nil {
		return err
	}
	for metric, pid := range map[string]int{
		"memory of berth":             cluster.PID,
		"memory of the control plane": children["berth-controlplane"],
		"memory of containerd":        children["containerd"],
	} {
		usage, err := testbed.UsageOf(pid)
		if err != nil {
			return err
		}
		s.Set(metric, float64(usage.RSS)/(1<<20))
	}
	return nil
}
