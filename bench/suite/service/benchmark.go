package service

import (
	"context"
	"time"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/bench/testbed"
)

const (
	ours   = "berth"
	theirs = "defaults of kubernetes v1.36.3"

	sequential = 50                     // Services of a sample that come one at a time
	pace       = 100 * time.Millisecond // between two of them
	together   = 1000                   // Services that come at once
)

var network = testbed.Network{PodCIDR: "10.223.0.0/24", ServiceCIDR: "10.224.0.0/16"}

// Benchmark measures Services and their names.
func Benchmark() harness.Benchmark {
	ms := func(name string) harness.Metric { return harness.Metric{Name: name, Unit: "ms", Better: harness.Lower} }
	s := func(name string) harness.Metric { return harness.Metric{Name: name, Unit: "s", Better: harness.Lower} }
	mib := func(name string) harness.Metric {
		return harness.Metric{Name: name, Unit: "MiB", Better: harness.Lower}
	}
	return harness.Benchmark{
		Name: "service", Title: "Services and names", Budget: 4 * time.Minute,
		About: "The cluster of `berth up`, once with its own kube-proxy and DNS and once with the same programs with the" +
			" defaults of Kubernetes: kube-proxy in nftables mode that writes its rules at most once a second, CoreDNS with" +
			" kubeadm's Corefile. *Name resolved*: from the API server's response to the creation of a Service to the first DNS" +
			" response with its address, while the name is asked for every millisecond from before its creation. *Endpoint" +
			" reachable*: from the API server's response to the write that makes a Pod Ready, the only one of its Service, to the" +
			" first connection to the Service's address that is accepted; the EndpointSlice controller is part of that. One such" +
			" change comes every 0.1 s. *At once*: 1,000 Services with the same Pod are created, 16 at a time, until all of" +
			" their names are resolved and all of their addresses accept connections.",
		Missing: func(site harness.Paths) string {
			return testbed.Missing(site.Bin, "berth", "berth-controlplane", "berth-dns", "containerd", "runc", "images/pause")
		},
		Cases: []harness.Case{
			{
				Name: "one at a time", Rounds: 3,
				Metrics: []harness.Metric{
					ms("name resolved p50"), ms("name resolved p99"), ms("endpoint reachable p50"), ms("endpoint reachable p99"),
				},
				Targets:  []harness.Target{{Metric: "name resolved p50", Ratio: 20}, {Metric: "endpoint reachable p50", Ratio: 30}},
				Variants: variants((*fixture).oneAtATime),
			},
			{
				Name: "1,000 at once", Rounds: 3, Timeout: 10 * time.Minute,
				Metrics: []harness.Metric{
					s("created"), s("all names resolved"), s("all reachable"), s("CPU of kube-proxy"), s("CPU of DNS"),
					mib("memory of kube-proxy"), mib("memory of DNS"),
				},
				Variants: variants((*fixture).atOnce),
			},
		},
	}
}

// variants run one measurement with both configurations.
func variants(measure func(*fixture, context.Context, *harness.Sample) error) []harness.Variant {
	both := []harness.Variant{{Name: ours}, {Name: theirs}}
	for i := range both {
		upstream := both[i].Name == theirs
		both[i].Run = func(ctx context.Context, s *harness.Sample) error {
			return withFixture(ctx, s, upstream, func(f *fixture) error { return measure(f, ctx, s) })
		}
	}
	return both
}
