package provision

import (
	"context"
	"time"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/bench/testbed"
)

const (
	ours            = "berth"
	theirs          = "external-provisioner lib v13"
	theirsUnlimited = "the same, no limit, 64 workers"
	baseline        = "volumes written by hand"
	nodeName        = "bench"
)

var network = testbed.Network{PodCIDR: "10.213.0.0/24", ServiceCIDR: "10.214.0.0/24"}

// Benchmark measures the provisioning of many claims at once.
func Benchmark() harness.Benchmark {
	metrics := []harness.Metric{
		{Name: "all bound", Unit: "s", Better: harness.Lower},
		{Name: "bound p50", Unit: "s", Better: harness.Lower},
		{Name: "bound p99", Unit: "s", Better: harness.Lower},
		{Name: "last write", Unit: "s", Better: harness.Lower},
		{Name: "writes a claim", Unit: "", Better: harness.Lower},
		{Name: "refused writes", Unit: "", Better: harness.Lower},
		{Name: "CPU of the provisioner a claim", Unit: "ms", Better: harness.Lower},
		{Name: "CPU of the control plane a claim", Unit: "ms", Better: harness.Lower},
	}
	return harness.Benchmark{
		Name: "provision", Title: "Dynamic provisioning", Budget: 13 * time.Minute,
		About: "Claims created at once (16 at a time), with a provisioner that answers at once, until all are Bound; a real" +
			" control plane without client limits. Berth runs as `berth up` runs it, with 4 workers and a client without" +
			" a limit; the library with its defaults (4 workers) and client-go's (5 requests a second), then with that" +
			" limit lifted and 64 workers. *Volumes written by hand*: nothing but the volumes' objects, as fast as they are" +
			" asked for; that time is kube-controller-manager's, which binds. *CPU of the control plane* is what API server," +
			" etcd and controllers take together; what else the machine does changes it less than the times. It, the provisioner's" +
			" CPU and its writes are counted until it has written nothing for two seconds, which is some time after the last" +
			" claim is bound: the *last write*. *Limited*:" +
			" both with client-go's 5 requests a second. *Writes* are all requests of the provisioner's client that" +
			" change something, events included; those that the API server refused, for a conflict, say, stand apart.",
		Missing: missing, Setup: setUp,
		Cases: []harness.Case{
			{
				Name: "500 claims", Metrics: metrics, Timeout: 15 * time.Minute,
				Targets: []harness.Target{
					{Metric: "all bound", Against: theirs, Ratio: 0.05},
					{Metric: "all bound", Against: theirsUnlimited, Ratio: 0.5},
					{Metric: "all bound", Against: baseline, Ratio: 1.15},
					{Metric: "bound p99", Against: baseline, Ratio: 1.15},
					{Metric: "writes a claim", Ratio: 5},
				},
				Variants: []harness.Variant{
					variant(ours, 500, false, runBerth),
					variant(theirs, 500, true, runLibrary(0)),
					variant(theirsUnlimited, 500, false, runLibrary(64)),
					variant(baseline, 500, false, runBaseline),
				},
				Rounds: 3,
			},
			{
				Name: "50 claims, limited", Metrics: metrics, Timeout: 15 * time.Minute, Rounds: 2,
				Variants: []harness.Variant{
					variant(ours, 50, true, runBerth), variant(theirs, 50, true, runLibrary(0)),
				},
			},
		},
	}
}

// Idle measures an idle provisioner. It is a benchmark of its own because its claims would slow the other one: they stay
// until the control plane stops.
func Idle() harness.Benchmark {
	return harness.Benchmark{
		Name: "claims", Title: "Idle provisioner", Budget: 10 * time.Minute,
		About: "A provisioner with 10,000 bound claims that do not change, measured for a minute, in a process" +
			" of its own.",
		Missing: missing, Setup: setUp,
		Cases: []harness.Case{{
			Name: "10,000 claims, idle", Timeout: 15 * time.Minute, Rounds: 2,
			Metrics: []harness.Metric{
				{Name: "CPU", Unit: "% of a core", Better: harness.Lower},
				{Name: "writes", Unit: "/min", Better: harness.Lower},
				{Name: "heap", Unit: "MiB", Better: harness.Lower},
			},
			Targets:  []harness.Target{{Metric: "CPU", Ratio: 0.1}, {Metric: "writes", Ratio: 0}},
			Variants: []harness.Variant{idleVariant(ours, runBerth), idleVariant(theirs, runLibrary(0))},
		}},
	}
}

func missing(site harness.Paths) string { return testbed.Missing(site.Bin, "berth-controlplane") }

// setUp starts the control plane that all samples share.
func setUp(ctx context.Context, site harness.Paths) (*harness.Environment, error) {
	c, err := testbed.StartControlPlane(ctx, site.Bin, site.Dir, network, nodeName)
	if err != nil {
		return nil, err
	}
	return &harness.Environment{Env: map[string]string{testbed.EnvKubeconfig: c.Kubeconfig()}, Stop: c.Stop}, nil
}
