package fork

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
	"github.com/berth-dev/berth/up/disposable"
)

const (
	ours = "berthtest"
	// together is how many clusters start at the same time.
	together = 8
	// stopTimeout bounds the stop of a cluster.
	stopTimeout = time.Minute
)

func seconds(name string) harness.Metric {
	return harness.Metric{Name: name, Unit: "s", Better: harness.Lower}
}

func mebibytes(name string) harness.Metric {
	return harness.Metric{Name: name, Unit: "MiB", Better: harness.Lower}
}

// Benchmark measures clusters for tests.
func Benchmark() harness.Benchmark {
	return harness.Benchmark{
		Name: "fork", Title: "Clusters for tests", Budget: 6 * time.Minute,
		About: "What package `berthtest` starts for a test: a whole cluster in namespaces of its own, from the start of the process until its" +
			" Node is ready, and until its Services are synced and names resolve, too (*complete*). *From nothing* is the first start of these programs," +
			" which also saves what the next start from (*fork*). *From a pool* is what a test waits for that `berth pool` runs, if clusters are" +
			" ready. Memory is that of all processes of one cluster (pages that several share count in parts), disk what its files take.",
		Missing: func(site harness.Paths) string {
			return testbed.Missing(site.Bin, "berth", "berth-controlplane", "berth-dns", "berth-isolate", "containerd", "runc", "images/pause")
		},
		Cases: []harness.Case{
			{
				Name: "one after the other",
				Metrics: []harness.Metric{
					seconds("from nothing, complete"), seconds("fork, Node ready"), seconds("fork, complete"), seconds("from a pool"),
					seconds("API server alone"), mebibytes("memory"), mebibytes("disk"),
				},
				Targets:  []harness.Target{{Metric: "fork, Node ready", Ratio: 0.7}, {Metric: "from a pool", Ratio: 0.7}},
				Variants: []harness.Variant{{Name: ours, Run: oneAfterTheOther}},
			},
			{
				Name: fmt.Sprintf("%d at the same time", together), Timeout: 10 * time.Minute,
				Metrics:  []harness.Metric{seconds("slowest fork, Node ready"), seconds("slowest fork, complete"), seconds("slowest from a pool")},
				Targets:  []harness.Target{{Metric: "slowest fork, Node ready", Ratio: 4}, {Metric: "slowest from a pool", Ratio: 4}},
				Variants: []harness.Variant{{Name: ours, Run: atTheSameTime}},
			},
			{
				Name: fmt.Sprintf("a cluster with %d Pods and %d disks", podCount, diskCount), Timeout: 10 * time.Minute,
				Metrics: []harness.Metric{
					seconds("save"), seconds("standstill"), seconds("fork until the Node is ready"), seconds("fork until all Pods are ready"),
					mebibytes("disk of the saved cluster"),
				},
				Variants: []harness.Variant{{Name: ours, Run: withPods}},
			},
		},
	}
}

// configOf returns how the clusters of a sample start, with files of its own.
func configOf(s *harness.Sample) (disposable.Config, func() error, error) {
	root, err := os.MkdirTemp("", "bench-fork-") // the paths of sockets are short
	config := disposable.Config{Berth: filepath.Join(s.Paths.Bin, "berth"), Root: filepath.Join(root, "c")}
	return config, func() error { return os.RemoveAll(root) }, err
}

// started is a cluster, and how many seconds it took until its Node was ready and until it was complete.
type started struct {
	*disposable.Cluster
	node, complete float64
}

// starter starts a cluster, as disposable.Start does.
type starter func(ctx context.Context, config disposable.Config) (*disposable.Cluster, error)

// timed starts a cluster. The Node of one that is taken from a pool is ready with it.
func timed(ctx context.Context, config disposable.Config, start starter) (s started, err error) {
	began := time.Now()
	ready := make(chan float64, 1)
	config.OnLine = func(line string) {
		if disposable.SaysNodeReady(line) {
			select {
			case ready <- time.Since(began).Seconds():
			default:
			}
		}
	}
	s.Cluster, err = start(ctx, config)
	s.complete = time.Since(began).Seconds()
	select {
	case s.node = <-ready:
	default:
		s.node = s.complete
	}
	return s, err
}

func oneAfterTheOther(ctx context.Context, s *harness.Sample) (err error) {
	config, remove, err := configOf(s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	first, err := timed(ctx, config, disposable.Start)
	if err != nil {
		return err
	}
	s.Set("from nothing, complete", first.complete)
	if err := first.Stop(stopTimeout); err != nil {
		return err
	}
	fork, err := timed(ctx, config, disposable.Start)
	if err != nil {
		return err
	}
	s.Set("fork, Node ready", fork.node)
	s.Set("fork, complete", fork.complete)
	if err := errors.Join(weigh(s, fork.Cluster), fork.Stop(stopTimeout)); err != nil {
		return err
	}
	alone := config
	alone.Args = []string{"--api-only"}
	api, err := timed(ctx, alone, disposable.Start)
	if err != nil {
		return err
	}
	s.Set("API server alone", api.complete)
	if err := api.Stop(stopTimeout); err != nil {
		return err
	}
	took, err := fromPool(ctx, config, 1)
	s.Set("from a pool", took)
	return err
}

// fromPool has a pool make n clusters ready, takes them at the same time, and returns how long the slowest took.
func fromPool(ctx context.Context, config disposable.Config, n int) (slowest float64, err error) {
	ready := make(chan struct{}, n)
	pool, err := disposable.NewPool(ctx, n, config.Root, func(ctx context.Context) (*disposable.Cluster, error) {
		select {
		case ready <- struct{}{}:
		default: // they were started, and no more are wanted
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return disposable.Start(ctx, config)
	})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, pool.Close()) }()
	if err := waitFilled(ctx, pool); err != nil {
		return 0, err
	}
	socket := filepath.Join(config.Root, disposable.SocketName)
	taken, err := parallel(ctx, n, config, func(ctx context.Context, _ disposable.Config) (*disposable.Cluster, error) {
		return disposable.Take(ctx, socket)
	})
	return taken.complete, err
}

// waitFilled waits until the pool has all its clusters.
func waitFilled(ctx context.Context, pool *disposable.Pool) error {
	select {
	case <-pool.Filled():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// parallel starts n clusters at the same time, ends them and returns how long the slowest took.
func parallel(ctx context.Context, n int, config disposable.Config, start starter) (slowest started, err error) {
	all := make([]started, n)
	group, groupCtx := errgroup.WithContext(ctx)
	for i := range all {
		group.Go(func() (err error) {
			all[i], err = timed(groupCtx, config, start)
			return err
		})
	}
	err = group.Wait()
	for _, one := range all {
		slowest.node, slowest.complete = max(slowest.node, one.node), max(slowest.complete, one.complete)
		if one.Cluster != nil {
			err = errors.Join(err, one.End(0))
		}
	}
	return slowest, err
}

func atTheSameTime(ctx context.Context, s *harness.Sample) (err error) {
	config, remove, err := configOf(s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	c, err := disposable.Start(ctx, config) // saves what they start from
	if err != nil {
		return err
	}
	if err := c.End(0); err != nil {
		return err
	}
	forks, err := parallel(ctx, together, config, disposable.Start)
	if err != nil {
		return err
	}
	s.Set("slowest fork, Node ready", forks.node)
	s.Set("slowest fork, complete", forks.complete)
	taken, err := fromPool(ctx, config, together)
	s.Set("slowest from a pool", taken)
	return err
}
