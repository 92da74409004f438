package pod

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/bench/testbed"
	"github.com/berth-dev/berth/up/containerd"
)

const (
	ours     = "berth"
	theirs   = "kubernetes v1.36.3"
	baseline = "CRI floor"
	// The first with runc's program instead of Berth's own runtime, and the last the other way round.
	oursRunc     = "berth, runc"
	baselineShim = "CRI floor, own shim"

	sequentialPods = 20 // Pods of a sample that come one at a time
)

var network = testbed.Network{PodCIDR: "10.211.0.0/24", ServiceCIDR: "10.212.0.0/24", Gateway: "10.211.0.1"}

// Benchmark measures the start and the end of Pods.
func Benchmark() harness.Benchmark {
	return harness.Benchmark{
		Name: "pod", Title: "Pod start and stop", Budget: 25 * time.Minute,
		About: "Create to Ready, and delete (grace 1 s, the process ends at once) to gone, as a watch sees them, of Pods of" +
			" one container with an emptyDir and a ConfigMap, on one node whose image is present. One at a time, the next" +
			" comes 0.2 s after the one before is gone. Both kubelets use the" +
			" same control plane and containerd, one after the other; Pods are bound to the node beforehand, so no" +
			" scheduler is in the time. *Stateful* Pods come with a claim of their own, and go through scheduler and" +
			" provisioner. The *CRI floor* is RunPodSandbox, CreateContainer and StartContainer, and StopContainer," +
			" StopPodSandbox and RemovePodSandbox, called directly for the same container, without volumes;" +
			" its sandbox has the seccomp profile that Kubernetes asks for every sandbox, RuntimeDefault. Berth's Pods have its own shim," +
			" unless the column says runc, and Berth's CNI plugin; the others have containerd's, which runs runc, and the CNI plugins bridge," +
			" host-local and portmap as programs, which is how they run elsewhere. All files are on a file system of the benchmark's own," +
			" an ext4 with a journal, and containerd's state on a tmpfs, as /run is with systemd. *CPU of the machine* is that of all processes, in a run on a machine" +
			" where nothing else runs.",
		Missing: missing,
		Setup:   setup,
		Cases: []harness.Case{
			oneAtATime("hostNetwork, one at a time", plan{count: sequentialPods, hostNetwork: true}),
			oneAtATime("bridge, one at a time", plan{count: sequentialPods}),
			burst("hostNetwork, 30 at once", plan{count: 30, hostNetwork: true, together: true}),
			burst("bridge, 30 at once", plan{count: 30, together: true}),
			burst("hostNetwork, 100 at once", plan{count: 100, hostNetwork: true, together: true}),
			burst("bridge, 100 at once", plan{count: 100, together: true}),
			{
				Name: "stateful, one at a time", Metrics: metrics(false), Rounds: 3,
				Variants: []harness.Variant{
					kubelet(ours, testbed.Berth, plan{count: sequentialPods, stateful: true}),
					kubelet(theirs, testbed.Upstream, plan{count: sequentialPods, stateful: true}.with(containerd.RuntimeRunc)),
				},
			},
		},
	}
}

// Idle measures a node that has nothing to do.
func Idle() harness.Benchmark {
	b := harness.Benchmark{
		Name: "idle", Title: "Idle node", Axis: "Pods", Budget: 7 * time.Minute,
		About: "A node whose Pods all run and whose objects do not change, measured for 30 s after its start is over:" +
			" CPU of the kubelet and of containerd, which the kubelet keeps busy, and the kubelet's resident memory; *private*" +
			" is what of it is not the program's own file.",
		Missing: missing,
		Setup:   setup,
	}
	for _, pods := range []int{0, 50, 100} {
		c := harness.Case{
			Name: fmt.Sprint(pods, " Pods"), Scale: float64(pods), Rounds: 2, Timeout: 10 * time.Minute,
			Metrics: []harness.Metric{
				{Name: "CPU of the kubelet", Unit: "s/min", Better: harness.Lower},
				{Name: "CPU of containerd", Unit: "s/min", Better: harness.Lower},
				{Name: "memory of the kubelet", Unit: "MiB", Better: harness.Lower},
				{Name: "of that private", Unit: "MiB", Better: harness.Lower},
			},
			Variants: []harness.Variant{idle(ours, testbed.Berth, pods), idle(theirs, testbed.Upstream, pods)},
		}
		if pods == 100 {
			c.Targets = []harness.Target{
				{Metric: "CPU of the kubelet", Against: theirs, Ratio: 0.1},
				{Metric: "memory of the kubelet", Against: theirs, Ratio: 1. / 3},
			}
		}
		b.Cases = append(b.Cases, c)
	}
	return b
}

func missing(site harness.Paths) string {
	return testbed.Missing(site.Bin, "berth", "berth-controlplane", "containerd", "containerd-shim-berth-v1", "runc", "images/pause", testbed.UpstreamProgram)
}

// diskSize has the image, the volumes and the logs of all Pods of a sample, and the control plane's data.
const diskSize = 8 << 30

// setup starts a cluster on a file system of its own. Without a journal, as some machines' root file systems are, ext4 examines at each
// creation of a file the files that were deleted in the last minutes, so that each sample would depend on those before it.
func setup(ctx context.Context, site harness.Paths) (_ *harness.Environment, err error) {
	dir := filepath.Join(site.Dir, "disk")
	unmount, err := testbed.MountDisk(dir, diskSize)
	if err != nil {
		return nil, err
	}
	stop := unmount
	defer func() {
		if err != nil {
			err = errors.Join(err, stop())
		}
	}()
	cluster, err := testbed.StartCluster(ctx, site.Bin, dir, network)
	if err != nil {
		return nil, err
	}
	stop = func() error { return errors.Join(cluster.Stop(), unmount()) }
	env, err := cluster.Env()
	if err != nil {
		return nil, err
	}
	if err := addRuntimeClass(ctx, cluster); err != nil {
		return nil, err
	}
	version, err := runtimeVersion(ctx, cluster.Runtime)
	if err != nil {
		return nil, err
	}
	return &harness.Environment{Env: env, Versions: map[string]string{"runtime": version}, Stop: stop}, nil
}

func addRuntimeClass(ctx context.Context, cluster *testbed.Running) error {
	client, _, err := testbed.Client(cluster.Kubeconfig())
	if err != nil {
		return err
	}
	_, err = client.NodeV1().RuntimeClasses().Create(ctx, runtimeClass(), metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create RuntimeClass: %w", err)
	}
	return nil
}

func runtimeVersion(ctx context.Context, endpoint string) (string, error) {
	runtime, err := testbed.Dial(endpoint)
	if err != nil {
		return "", err
	}
	version, err := runtime.RuntimeVersion(ctx)
	return version, errors.Join(err, runtime.Close())
}

// metrics are those of Pods, alone or together.
func metrics(together bool) []harness.Metric {
	all := []harness.Metric{
		{Name: "ready p50", Unit: "ms", Better: harness.Lower},
		{Name: "ready p99", Unit: "ms", Better: harness.Lower},
		{Name: "gone p50", Unit: "ms", Better: harness.Lower},
		{Name: "gone p99", Unit: "ms", Better: harness.Lower},
	}
	if together {
		all = append([]harness.Metric{
			{Name: "all ready", Unit: "s", Better: harness.Lower},
			{Name: "all gone", Unit: "s", Better: harness.Lower},
		}, all...)
	}
	return append(all,
		harness.Metric{Name: "CPU of the kubelet a Pod", Unit: "ms", Better: harness.Lower, Optional: true},
		harness.Metric{Name: "CPU of containerd a Pod", Unit: "ms", Better: harness.Lower},
		harness.Metric{Name: "CPU of the machine a Pod", Unit: "ms", Better: harness.Lower},
	)
}

func oneAtATime(name string, p plan) harness.Case {
	return harness.Case{
		Name: name, Metrics: metrics(false), Variants: variants(p),
		Targets: []harness.Target{
			{Metric: "ready p50", Against: baseline, Ratio: 0.75},
			{Metric: "gone p50", Against: baseline, Ratio: 0.75},
			{Of: oursRunc, Metric: "ready p50", Against: baseline, Ratio: 1.15},
			{Of: oursRunc, Metric: "ready p99", Against: baseline, Ratio: 1.5},
			{Of: oursRunc, Metric: "gone p50", Against: baseline, Ratio: 1.25},
			{Of: baselineShim, Metric: "CPU of the machine a Pod", Against: baseline, Ratio: 0.6},
		},
	}
}

func burst(name string, p plan) harness.Case {
	return harness.Case{
		Name: name, Metrics: metrics(true), Variants: variants(p), Rounds: 3, Timeout: 10 * time.Minute,
		Targets: []harness.Target{
			{Metric: "all ready", Against: theirs, Ratio: 0.5},
			{Metric: "all gone", Against: theirs, Ratio: 0.5},
			{Of: baselineShim, Metric: "CPU of the machine a Pod", Against: baseline, Ratio: 0.6},
		},
	}
}

func variants(p plan) []harness.Variant {
	runc := p.with(containerd.RuntimeRunc)
	return []harness.Variant{
		kubelet(ours, testbed.Berth, p),
		kubelet(theirs, testbed.Upstream, runc),
		floor(baseline, runc),
		kubelet(oursRunc, testbed.Berth, runc),
		floor(baselineShim, p),
	}
}

func floor(name string, p plan) harness.Variant {
	return harness.Variant{Name: name, Run: func(ctx context.Context, s *harness.Sample) error { return runBaseline(ctx, s, p) }}
}

// with is the plan with another runtime.
func (p plan) with(runtime string) plan {
	p.runtime = runtime
	return p
}

func kubelet(name string, which testbed.Kubelet, p plan) harness.Variant {
	return harness.Variant{Name: name, Run: func(ctx context.Context, s *harness.Sample) error {
		return run(ctx, s, which, p)
	}}
}

func idle(name string, which testbed.Kubelet, pods int) harness.Variant {
	return harness.Variant{Name: name, Run: func(ctx context.Context, s *harness.Sample) error {
		return runIdle(ctx, s, which, pods)
	}}
}
