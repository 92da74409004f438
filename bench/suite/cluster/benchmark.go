package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/bench/testbed"
)

const (
	ours      = "berth up"
	bare      = "without kube-proxy and DNS"
	restTime  = 15 * time.Second // from ready to the reading of memory
	nodeName  = "bench"
	firstName = "kubernetes.default.svc.cluster.local." // the Service that each cluster has
)

var network = testbed.Network{PodCIDR: "10.217.0.0/24", ServiceCIDR: "10.218.0.0/24"}

// Benchmark measures the start of a whole cluster.
func Benchmark() harness.Benchmark {
	memory := func(what string) harness.Metric {
		return harness.Metric{Name: "memory of " + what, Unit: "MiB", Better: harness.Lower}
	}
	seconds := func(name string) harness.Metric { return harness.Metric{Name: name, Unit: "s", Better: harness.Lower} }
	dns := func(start string) harness.Metric {
		metric := seconds(start + ", DNS")
		metric.Optional = true
		return metric
	}
	return harness.Benchmark{
		Name: "cluster", Title: "Cluster start", Budget: 2 * time.Minute,
		About: "`berth up` with all binaries built: from the start of the process to its report that the node is ready," +
			" (*DNS*) to the time when the name of a Service is also resolved, and (*complete*) to its report that everything is" +
			" ready, the controller manager and kube-proxy too, with an empty data directory and then, after an" +
			" orderly stop, with the same one; and the resident memory of its processes 15 s later, without Pods. (control" +
			" plane: etcd, kube-apiserver, kube-controller-manager and kube-scheduler in one process. berth: kubelet and" +
			" controllers.)",
		Missing: missing,
		Cases: []harness.Case{{
			Name: "to a ready node",
			Metrics: []harness.Metric{
				seconds("first start"), dns("first start"), seconds("first start, complete"),
				seconds("start again"), dns("start again"), seconds("start again, complete"),
				seconds("stop"),
				memory("berth"), memory("the control plane"), memory("containerd"),
			},
			Targets:  []harness.Target{{Metric: "first start, DNS", Ratio: 2}, {Metric: "start again, DNS", Ratio: 2}},
			Variants: []harness.Variant{variant(ours, true), variant(bare, false)},
		}},
	}
}

func missing(site harness.Paths) string {
	return testbed.Missing(site.Bin, "berth", "berth-controlplane", "berth-dns", "containerd", "runc", "images/pause")
}

func variant(name string, services bool) harness.Variant {
	return harness.Variant{Name: name, Run: func(ctx context.Context, s *harness.Sample) error { return run(ctx, s, services) }}
}

func run(ctx context.Context, s *harness.Sample, services bool) (err error) {
	dir, err := os.MkdirTemp(s.Paths.Dir, "up-")
	if err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	up := testbed.Up{Bin: s.Paths.Bin, Dir: dir, Network: network, NodeName: nodeName, Services: services}
	defer func() { err = errors.Join(err, os.RemoveAll(filepath.Join(dir, "data"))) }()
	for _, metric := range []string{"first start", "start again"} {
		cluster, err := start(ctx, s, up, metric)
		if err != nil {
			return err
		}
		if metric == "first start" {
			began := time.Now()
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

// start starts the cluster and sets the metrics of its start.
func start(ctx context.Context, s *harness.Sample, up testbed.Up, metric string) (cluster *testbed.Process, err error) {
	var ready, resolved, complete time.Time
	nodeReady := make(chan time.Time, 1)
	up.OnNodeReady = func() { nodeReady <- time.Now() }
	began := time.Now()
	group, waiting := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		cluster, err = up.Start(waiting)
		complete = time.Now()
		return err
	})
	group.Go(func() (err error) {
		select {
		case ready = <-nodeReady:
		case <-waiting.Done():
			return nil // the start has failed
		}
		if up.Services {
			resolved, err = waitDNS(waiting, up)
		}
		return err
	})
	if err := group.Wait(); err != nil {
		if cluster != nil {
			err = errors.Join(err, cluster.Stop())
		}
		return nil, err
	}
	s.Set(metric, ready.Sub(began).Seconds())
	s.Set(metric+", complete", complete.Sub(began).Seconds())
	if up.Services {
		s.Set(metric+", DNS", resolved.Sub(began).Seconds())
	}
	return cluster, nil
}

// waitDNS returns when the name of the first Service is resolved.
func waitDNS(ctx context.Context, up testbed.Up) (_ time.Time, err error) {
	server, err := up.DNSAddress()
	if err != nil {
		return time.Time{}, err
	}
	resolver, err := testbed.NewResolver(ctx, server)
	if err != nil {
		return time.Time{}, err
	}
	defer func() { err = errors.Join(err, resolver.Close()) }()
	return resolver.WaitName(ctx, firstName)
}

// weigh sets the memory of the cluster's processes.
func weigh(ctx context.Context, s *harness.Sample, cluster *testbed.Process) error {
	if err := harness.Pause(ctx, restTime); err != nil {
		return err
	}
	children, err := testbed.Children(cluster.PID)
	if err != nil {
		return err
	}
	for metric, pid := range map[string]int{
		"memory of berth":             children["berth"],
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
