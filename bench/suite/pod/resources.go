package pod

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/bench/testbed"
)

const (
	// addedTime is what the CPU and the device cost: the metric that has a target, and the milliseconds that it may take.
	addedTime      = "added by CPU and device"
	addedTimeBound = 5
)

// What the Pods of the benchmark request: both are Guaranteed, so that only CPU and device are different.
var (
	sharedCPU = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("32Mi")}
	ownCPUAndDevice = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("32Mi"),
		testbed.DeviceResource: resource.MustParse("1")}
)

// Resources measures what a CPU and a device of its own add to a Pod's start.
func Resources() harness.Benchmark {
	metric := func(name string) harness.Metric { return harness.Metric{Name: name, Unit: "ms", Better: harness.Lower} }
	variant := func(name string, which testbed.Kubelet) harness.Variant {
		return harness.Variant{Name: name, Run: func(ctx context.Context, s *harness.Sample) error { return runResources(ctx, s, which) }}
	}
	return harness.Benchmark{
		Name: "resources", Title: "CPUs and devices", Budget: 4 * time.Minute,
		About: "Create to Ready, as in the benchmark of Pods, of Pods on a node with CPU manager policy static, one at a time: in turn one" +
			" with half a CPU of all, and one with a CPU of its own and a device of a device plugin, which gets all calls that there are" +
			" (GetPreferredAllocation, Allocate, PreStartContainer). What is *added* is the difference of the two medians without the plugin's" +
			" own time in these calls.",
		Missing: func(site harness.Paths) string {
			if runtime.NumCPU() < 2 {
				return "this machine has one CPU, which no container can have alone"
			}
			return missing(site)
		},
		Setup: setup,
		Cases: []harness.Case{{
			Name: "one at a time", Rounds: 3,
			Metrics:  []harness.Metric{metric(addedTime), metric("ready p50 without"), metric("ready p50 with"), metric("the plugin's own time")},
			Targets:  []harness.Target{{Metric: addedTime, Ratio: addedTimeBound}},
			Variants: []harness.Variant{variant(ours, testbed.Berth), variant(theirs, testbed.Upstream)},
		}},
	}
}

func runResources(ctx context.Context, sample *harness.Sample, which testbed.Kubelet) error {
	s, err := newFixture(ctx, which, plan{hostNetwork: true, static: true})
	if err != nil {
		return err
	}
	plugin, err := testbed.StartDevicePlugin(ctx, s.Cluster, which, s.Client)
	if err == nil {
		s.Defer(plugin.Stop)
		err = s.measureResources(ctx, sample, plugin)
	}
	return errors.Join(err, s.Close())
}

func (s *fixture) measureResources(ctx context.Context, sample *harness.Sample, plugin *testbed.DevicePlugin) error {
	var without, with results
	var before time.Duration
	for i := range sequentialPods + 1 {
		if i == 1 { // the first Pod of each kind is slower, and not counted
			without, with, before = results{}, results{}, plugin.Took()
		}
		s.plan.requests = sharedCPU
		if err := s.one(ctx, fmt.Sprint("shared-", i), &without); err != nil {
			return err
		}
		s.plan.requests = ownCPUAndDevice
		if err := s.one(ctx, fmt.Sprint("own-", i), &with); err != nil {
			return err
		}
	}
	own := harness.Milliseconds(plugin.Took()-before) / sequentialPods
	shared, exclusive := harness.Quantile(without.ready, 0.5), harness.Quantile(with.ready, 0.5)
	sample.Keep("create to ready, without", without.ready)
	sample.Keep("create to ready, with", with.ready)
	sample.Set("ready p50 without", shared)
	sample.Set("ready p50 with", exclusive)
	sample.Set("the plugin's own time", own)
	sample.Set(addedTime, exclusive-shared-own)
	return nil
}
