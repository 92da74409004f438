package volumes

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

	each        = 15 // Pods of each kind in a sample
	idlePods    = 100
	perPod      = 10
	restTime    = 20 * time.Second // after the last Pod is ready, before anything counts
	idleTime    = 60 * time.Second
	deleteDelay = 200 * time.Millisecond // between ready and deletion of a Pod
	nextDelay   = 200 * time.Millisecond // between the end of a Pod with its volume and the next Pod
	withAdded   = "added p50"
)

var network = testbed.Network{PodCIDR: "10.221.0.0/24", ServiceCIDR: "10.222.0.0/24", Gateway: "10.221.0.1"}

// Benchmark measures volumes.
func Benchmark() harness.Benchmark {
	return harness.Benchmark{
		Name: "volumes", Title: "Volumes", Budget: 12 * time.Minute,
		About: "Create to Ready, as a watch sees it, of hostNetwork Pods one at a time on one node whose image is present;" +
			" Pods with volumes and Pods without take turns, the next 0.2 s after the one before and its volume are gone, and *added* is the difference of the two medians. A claim is" +
			" created together with its Pod, and both go through scheduler and provisioner, as do the Pods that it is" +
			" compared with. Of class berth-loop there are two cases: the claim that is created with its Pod, and a disk that is provisioned" +
			" beforehand, of which what counts is attaching, making the" +
			" file system, staging and publishing, and *beyond the driver* is what is added less the driver's own call times." +
			" Idle: 1,000 volumes of 100 Pods, measured for a minute.",
		Missing: func(site harness.Paths) string {
			return testbed.Missing(site.Bin, "berth", "berth-controlplane", "containerd", "runc", "images/pause", testbed.UpstreamProgram)
		},
		Setup: setup,
		Cases: []harness.Case{
			{
				Name: "emptyDir, ConfigMap and token", Metrics: addedMetrics(), Rounds: 3,
				Variants: both(plan{with: small}),
				Targets:  []harness.Target{{Metric: withAdded, Ratio: 5}},
			},
			{
				Name: "claim of berth-local, created with its Pod", Metrics: addedMetrics(), Rounds: 3,
				Variants: both(plan{with: stateful, scheduled: true}),
				Targets:  []harness.Target{{Metric: withAdded, Ratio: 40}},
			},
			{
				Name: "disk of berth-loop: attach, stage, publish", Rounds: 3,
				Metrics: append(addedMetrics(),
					harness.Metric{Name: "the driver's calls p50", Unit: "ms", Better: harness.Lower},
					harness.Metric{Name: "beyond the driver p50", Unit: "ms", Better: harness.Lower}),
				Variants: both(plan{with: disk}),
				Targets:  []harness.Target{{Metric: "beyond the driver p50", Ratio: 60}},
			},
			{
				Name: "claim of berth-loop, created with its Pod", Rounds: 3,
				Metrics: append(addedMetrics(),
					harness.Metric{Name: "the driver's calls p50", Unit: "ms", Better: harness.Lower},
					harness.Metric{Name: "beyond the driver p50", Unit: "ms", Better: harness.Lower}),
				Variants: both(plan{with: diskAtOnce, scheduled: true}),
				Targets:  []harness.Target{{Metric: withAdded, Ratio: 60}},
			},
			{
				Name: "1,000 mounted volumes, idle", Rounds: 2, Timeout: 10 * time.Minute,
				Metrics: []harness.Metric{{Name: "CPU of the kubelet", Unit: "s/min", Better: harness.Lower}},
				Variants: []harness.Variant{
					{Name: ours, Run: func(ctx context.Context, s *harness.Sample) error { return runIdle(ctx, s, testbed.Berth) }},
					{Name: theirs, Run: func(ctx context.Context, s *harness.Sample) error { return runIdle(ctx, s, testbed.Upstream) }},
				},
				Targets: []harness.Target{{Metric: "CPU of the kubelet", Ratio: 0.06}},
			},
		},
	}
}

func addedMetrics() []harness.Metric {
	return []harness.Metric{
		{Name: withAdded, Unit: "ms", Better: harness.Lower},
		{Name: "with volumes p50", Unit: "ms", Better: harness.Lower},
		{Name: "without p50", Unit: "ms", Better: harness.Lower},
	}
}

func both(p plan) []harness.Variant {
	variant := func(name string, which testbed.Kubelet) harness.Variant {
		return harness.Variant{Name: name, Run: func(ctx context.Context, s *harness.Sample) error {
			return runAdded(ctx, s, which, p)
		}}
	}
	return []harness.Variant{variant(ours, testbed.Berth), variant(theirs, testbed.Upstream)}
}

func setup(ctx context.Context, site harness.Paths) (*harness.Environment, error) {
	cluster, err := testbed.StartCluster(ctx, site.Bin, site.Dir, network)
	if err != nil {
		return nil, err
	}
	env, err := cluster.Env()
	if err != nil {
		return nil, errors.Join(err, cluster.Stop())
	}
	return &harness.Environment{Env: env, Stop: cluster.Stop}, nil
}
