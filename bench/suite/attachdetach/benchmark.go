package attachdetach

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/bench/testbed"
)

const (
	ours    = "berth"
	theirs  = "kubernetes v1.36.3"
	perNode = 20
	// There are probes samples of the reaction, or as many as probeLimit allows, but no fewer than leastProbes.
	probes, leastProbes = 100, 10
	probeLimit          = 30 * time.Second

	restTime  = 5 * time.Second // after the start, before anything counts
	idleTime  = time.Minute     // so that each of Berth's passes over everything, one a minute, falls into it once
	probeTime = 20 * time.Second

	drainNodes, drainVolumes = 20, 50
	drainWriteTime           = 5 * time.Millisecond
)

// Benchmark measures the reconcilers.
func Benchmark() harness.Benchmark {
	b := harness.Benchmark{
		Name: "attachdetach", Title: "Attach and detach", Axis: "attached volumes", Budget: 16 * time.Minute,
		About: "The reconcilers with their own caches and executors, a plugin that attaches at once, and everything" +
			" attached that should be: CPU while nothing changes for a minute, memory, which includes the garbage that a running" +
			" process carries along (*kept* is what its caches hold); and, 100 times at random" +
			" moments (fewer where that takes longer than 30 s), the time from a Pod that wants a volume to the call of the" +
			" plugin.",
	}
	for _, nodes := range []int{100, 1000, 5000} {
		c := harness.Case{
			Name: fmt.Sprintf("%d nodes, %d volumes", nodes, nodes*perNode), Scale: float64(nodes * perNode), Rounds: 2,
			Timeout: 15 * time.Minute, // the other reconciler takes seconds a probe where there is much and the machine is busy

			Metrics: []harness.Metric{
				{Name: "CPU idle", Unit: "% of a core", Better: harness.Lower},
				{Name: "allocated idle", Unit: "MiB/s", Better: harness.Lower},
				{Name: "memory", Unit: "MiB", Better: harness.Lower},
				{Name: "of that kept", Unit: "MiB", Better: harness.Lower},
				{Name: "wanted to attach call p50", Unit: "ms", Better: harness.Lower},
				{Name: "wanted to attach call p99", Unit: "ms", Better: harness.Lower},
			},
			Variants: []harness.Variant{
				atRest(ours, newBerth, nodes), atRest(theirs, newKubernetes, nodes),
			},
		}
		if nodes == 5000 {
			c.Targets = []harness.Target{
				{Metric: "CPU idle", Against: theirs, Ratio: 0.01},
				{Metric: "memory", Against: theirs, Ratio: 0.5},
				{Metric: "wanted to attach call p99", Ratio: 5},
			}
		}
		b.Cases = append(b.Cases, c)
	}
	return b
}

// Drain measures the detaching of much at once. It is apart because its cases have other metrics.
func Drain() harness.Benchmark {
	return harness.Benchmark{
		Name: "drain", Title: "Draining nodes", Budget: time.Minute,
		About: "The reconcilers as above: 1,000 attached volumes on 20 nodes are given up, and unmounted, at once." +
			" A volume leaves its node's status before it is detached; *writes* are how often a node's status is written" +
			" until its last detach begins. A write takes 5 ms, a detach no time.",
		Cases: []harness.Case{{
			Name: "1,000 volumes on 20 nodes",
			Metrics: []harness.Metric{
				{Name: "all detached", Unit: "ms", Better: harness.Lower},
				{Name: "status writes a node", Unit: "", Better: harness.Lower},
			},
			Targets:  []harness.Target{{Metric: "status writes a node", Ratio: 2}},
			Variants: []harness.Variant{drain(ours, newBerth), drain(theirs, newKubernetes)},
		}},
	}
}

type newController func(*storage, []types.NodeName) (controllerUnderTest, error)

// fixture is a world in which so much is attached.
type fixture struct {
	storage      *storage
	controller   controllerUnderTest
	nodes        []types.NodeName
	disks        [][]*disk // by node
	cacheBytes   float64   // bytes that the world's caches hold
	memoryBefore int64     // private memory of the process before there was a world
}

func newFixture(open newController, nodes, volumes int) (*fixture, error) {
	s := &fixture{storage: newStorage()}
	for i := range nodes {
		s.nodes = append(s.nodes, types.NodeName(fmt.Sprint("node-", i)))
		var disks []*disk
		for j := range volumes {
			disks = append(disks, newDisk(fmt.Sprintf("pvc-%d-%d", i, j)))
		}
		s.disks = append(s.disks, disks)
	}
	kept := harness.HeapInUse()
	debug.FreeOSMemory()
	usage, err := testbed.UsageOf(os.Getpid())
	if err != nil {
		return nil, err
	}
	s.memoryBefore = usage.Private
	if s.controller, err = open(s.storage, s.nodes); err != nil {
		return nil, err
	}
	for i, node := range s.nodes {
		s.controller.addNode(node)
		for _, d := range s.disks[i] {
			if err := s.controller.want(d, node); err != nil {
				return nil, err
			}
			if err := s.controller.attached(d, node); err != nil {
				return nil, err
			}
		}
	}
	s.cacheBytes = float64(harness.HeapInUse() - kept)
	return s, nil
}

func atRest(name string, open newController, nodes int) harness.Variant {
	return harness.Variant{Name: name, Run: func(ctx context.Context, sample *harness.Sample) error {
		s, err := newFixture(open, nodes, perNode)
		if err != nil {
			return err
		}
		running, stop := context.WithCancel(ctx)
		done := background(func() error { return s.controller.run(running) })
		err = s.measure(ctx, sample)
		stop()
		if runErr := <-done; err == nil {
			err = runErr
		}
		return err
	}}
}

// background runs f and gives its answer through a channel.
func background(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

func (s *fixture) measure(ctx context.Context, sample *harness.Sample) error {
	if err := harness.Pause(ctx, restTime); err != nil {
		return err
	}
	meter := harness.StartMeter()
	if err := harness.Pause(ctx, idleTime); err != nil {
		return err
	}
	spent := meter.Stop()
	sample.Set("CPU idle", 100*spent.CPU.Seconds()/spent.Wall.Seconds())
	sample.Set("allocated idle", float64(spent.Allocated)/(1<<20)/spent.Wall.Seconds())
	usage, err := testbed.UsageOf(os.Getpid())
	if err != nil {
		return err
	}
	sample.Set("memory", float64(usage.Private-s.memoryBefore)/(1<<20))
	sample.Set("of that kept", s.cacheBytes/(1<<20))
	var waits []float64
	random := rand.New(rand.NewPCG(1, 2))
	began := time.Now()
	for i := range probes {
		if i >= leastProbes && time.Since(began) > probeLimit {
			break
		}
		// Anywhere in a loop's period, so that no loop is met at a lucky moment.
		if err := harness.Pause(ctx, time.Duration(random.Int64N(int64(probeTime/probes)))); err != nil {
			return err
		}
		d, node := newDisk(fmt.Sprint("probe-", i)), s.nodes[random.IntN(len(s.nodes))]
		wanted := time.Now()
		if err := s.controller.want(d, node); err != nil {
			return err
		}
		select {
		case <-s.storage.onAttach:
		case <-ctx.Done():
			return fmt.Errorf("wait for the attach of %q: %w", d.pv.Name, ctx.Err())
		}
		s.storage.mu.Lock()
		waits = append(waits, harness.Milliseconds(s.storage.attaches[d.pv.Name].Sub(wanted)))
		s.storage.mu.Unlock()
	}
	sample.Keep("wanted to attach call", waits)
	sample.Set("wanted to attach call p50", harness.Quantile(waits, 0.5))
	sample.Set("wanted to attach call p99", harness.Quantile(waits, 0.99))
	runtime.KeepAlive(s)
	return nil
}

func drain(name string, open newController) harness.Variant {
	return harness.Variant{Name: name, Run: func(ctx context.Context, sample *harness.Sample) error {
		s, err := newFixture(open, drainNodes, drainVolumes)
		if err != nil {
			return err
		}
		running, stop := context.WithCancel(ctx)
		done := background(func() error { return s.controller.run(running) })
		err = s.drain(ctx, sample)
		stop()
		if runErr := <-done; err == nil {
			err = runErr
		}
		return err
	}}
}

func (s *fixture) drain(ctx context.Context, sample *harness.Sample) error {
	if err := harness.Pause(ctx, time.Second); err != nil { // the first pass, with its status writes, is over
		return err
	}
	s.storage.mu.Lock()
	clear(s.storage.writes)
	s.storage.writeTime = drainWriteTime
	s.storage.detachesWanted = drainNodes * drainVolumes
	s.storage.mu.Unlock()
	began := time.Now()
	for i, node := range s.nodes {
		for _, d := range s.disks[i] {
			s.controller.unwant(d, node)
		}
		s.controller.unmounted(node)
	}
	select {
	case <-s.storage.allDetached:
	case <-ctx.Done():
		return fmt.Errorf("wait for all detaches: %w", ctx.Err())
	}
	sample.Set("all detached", harness.Milliseconds(time.Since(began)))
	s.storage.mu.Lock()
	defer s.storage.mu.Unlock()
	most := 0
	for _, count := range s.storage.writesBefore {
		most = max(most, count)
	}
	sample.Set("status writes a node", float64(most))
	return nil
}
