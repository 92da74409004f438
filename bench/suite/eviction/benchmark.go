package eviction

import (
	"context"
	"errors"
	"time"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/bench/testbed"
)

const (
	ours   = "berth"
	theirs = "kubernetes v1.36.3"

	// reaction is the metric of all cases.
	reaction = "threshold to Pod ended"
)

var network = testbed.Network{PodCIDR: "10.217.0.0/24", ServiceCIDR: "10.218.0.0/24", Gateway: "10.217.0.1"}

// Benchmark measures the reaction to pressure.
func Benchmark() harness.Benchmark {
	return harness.Benchmark{
		Name: "eviction", Title: "Eviction", Budget: 8 * time.Minute,
		About: "From the moment when less of a resource is available than a hard threshold says, as the kernel's files show it, until a watch" +
			" shows that the Pod has ended, and its containers with it. The benchmark writes to the emptyDir of the node's" +
			" only Pod, in memory or on disk. The threshold of memory is 1 GiB below what is available at the start; the disk is a file system of" +
			" 1 GiB that the kubelet has for itself, with a threshold of 60 %. Both kubelets use the same control" +
			" plane and containerd, one after the other, with their default settings for eviction.",
		Missing: func(site harness.Paths) string {
			return testbed.Missing(site.Bin, "berth", "berth-controlplane", "containerd", "runc", "images/pause", testbed.UpstreamProgram)
		},
		Setup: func(ctx context.Context, site harness.Paths) (*harness.Environment, error) {
			cluster, err := testbed.StartCluster(ctx, site.Bin, site.Dir, network)
			if err != nil {
				return nil, err
			}
			env, err := cluster.Env()
			if err != nil {
				return nil, errors.Join(err, cluster.Stop())
			}
			return &harness.Environment{Env: env, Stop: cluster.Stop}, nil
		},
		Cases: []harness.Case{measured("memory", memory()), measured("disk", disk())},
	}
}

func measured(name string, r resource) harness.Case {
	variant := func(name string, which testbed.Kubelet) harness.Variant {
		return harness.Variant{Name: name, Run: func(ctx context.Context, s *harness.Sample) error { return run(ctx, s, which, r) }}
	}
	return harness.Case{
		Name: name, Metrics: []harness.Metric{{Name: reaction, Unit: "ms", Better: harness.Lower}},
		Variants: []harness.Variant{variant(ours, testbed.Berth), variant(theirs, testbed.Upstream)},
		Targets:  []harness.Target{{Metric: reaction, Against: theirs, Ratio: 0.1}},
	}
}
