package page

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/bench/testbed"
)

const (
	ours     = "berth up"
	nodeName = "bench"
	podCount = 1000

	restTime = 2 * time.Minute  // from the last Pod to the first measurement: what the Pods cost by themselves is over by then
	idleTime = time.Minute      // of each measurement of CPU
	openTime = 20 * time.Second // from the opening of a page to its measurement
	changes  = 100
	pace     = 300 * time.Millisecond // between two changes
)

var network = testbed.Network{PodCIDR: "10.225.0.0/24", ServiceCIDR: "10.226.0.0/24"}

// The metrics.
const (
	costMetric   = "CPU of an open page"
	closedMetric = "CPU of the cluster without a page"
	openedMetric = "page opened"
	medianMetric = "change shown p50"
	tailMetric   = "change shown p99"
	perChange    = "CPU of a shown change"
)

// Benchmark measures an open page on a cluster of a thousand Pods.
func Benchmark() harness.Benchmark {
	metric := func(name, unit string) harness.Metric {
		return harness.Metric{Name: name, Unit: unit, Better: harness.Lower}
	}
	cost := []harness.Metric{metric(costMetric, "% of a core"), metric(closedMetric, "% of a core"), metric(openedMetric, "ms")}
	bound := harness.Target{Metric: costMetric, Ratio: 2}
	return harness.Benchmark{
		Name: "page", Title: "The page", Budget: 12 * time.Minute,
		About: "The page of `berth up` on a cluster with 1,000 Pods, all of which wait, so that its first view lists each of them." +
			" *CPU of an open page* is the difference that it makes in all processes of the cluster together, over a minute each," +
			" two minutes after the last Pod was created; the browser itself does not count. *Page opened*: from the request to the" +
			" end of the HTML, without a script, and with it the watches start. *Change shown*: from before the request that changes a Pod" +
			" until the page has received the Pod's new row, of 100 changes, one every 0.3 s. What a change costs is counted in" +
			" the page's process alone. `make page` measures the same in a browser.",
		Missing: func(site harness.Paths) string {
			return testbed.Missing(site.Bin, "berth", "berth-controlplane", "containerd", "runc", "images/pause")
		},
		Cases: []harness.Case{
			{
				Name: "1,000 Pods, the list of all", Rounds: 1, Timeout: 15 * time.Minute,
				Metrics: append(cost, metric(medianMetric, "ms"), metric(tailMetric, "ms"), metric(perChange, "ms")),
				Targets: []harness.Target{bound, {Metric: tailMetric, Ratio: 100}},
				Variants: []harness.Variant{{Name: ours, Run: func(ctx context.Context, s *harness.Sample) error {
					return withCluster(ctx, s, func(c *cluster) error { return errors.Join(c.measureCost(ctx, s, "/"), c.measureChanges(ctx, s)) })
				}}},
			},
			{
				Name: "1,000 Pods, the page of one", Rounds: 1, Timeout: 15 * time.Minute, Metrics: cost, Targets: []harness.Target{bound},
				Variants: []harness.Variant{{Name: ours, Run: func(ctx context.Context, s *harness.Sample) error {
					return withCluster(ctx, s, func(c *cluster) error { return c.measureCost(ctx, s, "/pod/default/"+podName(0)) })
				}}},
			},
		},
	}
}

// cluster is a running cluster with a browser's session on its page.
type cluster struct {
	process *testbed.Process
	client  kubernetes.Interface
	browser *browser
}

// withCluster starts a cluster with its Pods, calls measure, and stops the cluster.
func withCluster(ctx context.Context, s *harness.Sample, measure func(*cluster) error) (err error) {
	dir, err := os.MkdirTemp(s.Paths.Dir, "page-")
	if err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	up := testbed.Up{Bin: s.Paths.Bin, Dir: dir, Network: network, NodeName: nodeName}
	process, link, err := up.StartWithPage(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, process.Stop()) }()
	c := &cluster{process: process}
	if c.client, _, err = testbed.Client(up.Kubeconfig()); err != nil {
		return err
	}
	if err := c.createPods(ctx); err != nil {
		return err
	}
	if c.browser, err = enter(ctx, link); err != nil {
		return err
	}
	if err := harness.Pause(ctx, restTime); err != nil {
		return err
	}
	return measure(c)
}
