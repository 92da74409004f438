package controller_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/reconcile"
)

func request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}

// start runs a controller, with fake time, until the test ends or stop is called.
func start[R comparable](t *testing.T, c *controller.TypedController[R]) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	synctest.Wait()
	return stop
}

// scriptedReconciler returns its results in turn, the last one again and again, and records when it was called.
type scriptedReconciler struct {
	answers []func(ctx context.Context) (reconcile.Result, error)
	mu      sync.Mutex
	began   time.Time
	at      []time.Duration
}

func (s *scriptedReconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	s.mu.Lock()
	if s.began.IsZero() {
		s.began = time.Now()
	}
	s.at = append(s.at, time.Since(s.began))
	answer := s.answers[min(len(s.at), len(s.answers))-1]
	s.mu.Unlock()
	return answer(ctx)
}

func result(r reconcile.Result, err error) func(context.Context) (reconcile.Result, error) {
	return func(context.Context) (reconcile.Result, error) { return r, err }
}

func TestWhatBecomesOfARequest(t *testing.T) {
	type answers = []func(context.Context) (reconcile.Result, error)
	again := result(reconcile.Result{Requeue: true}, nil)
	in10 := result(reconcile.Result{RequeueAfter: 10 * time.Second}, nil)
	bad := fmt.Errorf("x: %w", reconcile.TerminalError(errors.New("bad")))
	failed, done := result(reconcile.Result{}, errors.New("failed")), result(reconcile.Result{}, nil)
	for name, tc := range map[string]struct {
		answers answers
		calls   []time.Duration
	}{
		"success": {answers{done}, []time.Duration{0}},
		"errors back off": {
			answers{failed, failed, failed, failed, failed, done}, []time.Duration{0, 1, 3, 7, 11, 15},
		},
		"requeue backs off": {answers{
			again, again, done}, []time.Duration{0, 1, 3}},
		"requeue after is exact and forgets failures": {answers{
			failed, failed, in10, failed, done}, []time.Duration{0, 1, 3, 13, 14}},
		"requeue with requeue after": {answers{
			result(reconcile.Result{Requeue: true, RequeueAfter: 10 * time.Second}, nil), done}, []time.Duration{0, 10}},
		"an error counts more than its result": {answers{
			result(reconcile.Result{RequeueAfter: time.Hour}, errors.New("failed")), done}, []time.Duration{0, 1}},
		"a terminal error ends it": {answers{
			result(reconcile.Result{RequeueAfter: 1}, bad), done}, []time.Duration{0}},
		"a panic is an error": {answers{
			func(context.Context) (reconcile.Result, error) { panic("oh") }, done}, []time.Duration{0, 1}},
		"a timeout": {answers{
			func(ctx context.Context) (reconcile.Result, error) {
				<-ctx.Done()
				return reconcile.Result{}, context.Cause(ctx)
			}, done}, []time.Duration{0, 31}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &scriptedReconciler{answers: tc.answers}
				c, err := controller.New(s, controller.Deps{}, controller.Config{
					Name: "test", BackoffMin: time.Second, BackoffMax: 4 * time.Second, Timeout: 30 * time.Second,
				})
				require.NoError(t, err)
				c.Enqueue(request("a"))
				start(t, c)
				time.Sleep(time.Hour)
				synctest.Wait()
				want := make([]time.Duration, len(tc.calls))
				for i, seconds := range tc.calls {
					want[i] = seconds * time.Second
				}
				require.Equal(t, want, s.at)
			})
		})
	}
}

func TestPanicKeepsTheWorkerAndLogsTheStack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var calls atomic.Int32
		c, err := controller.New(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			if calls.Add(1) == 1 {
				var missing map[string]int
				missing["a"]++
			}
			return reconcile.Result{}, nil
		}), controller.Deps{Logger: slog.New(slog.NewTextHandler(&log, nil))}, controller.Config{Name: "test"})
		require.NoError(t, err)
		c.Enqueue(request("a"))
		stop := start(t, c)
		time.Sleep(time.Second)
		require.Equal(t, int32(2), calls.Load())
		stop()
		require.Contains(t, log.String(), "assignment to entry in nil map")
		require.Contains(t, log.String(), "controller_test.go")
	})
}

func TestKeysRunSideBySideButNeverOneTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running sync.Map
		var together, most atomic.Int32
		c, err := controller.New(reconcile.Func(func(_ context.Context, r reconcile.Request) (reconcile.Result, error) {
			_, twice := running.LoadOrStore(r, true)
			require.False(t, twice)
			most.Store(max(most.Load(), together.Add(1)))
			time.Sleep(time.Second)
			together.Add(-1)
			running.Delete(r)
			return reconcile.Result{}, nil
		}), controller.Deps{}, controller.Config{Name: "test", Workers: 3})
		require.NoError(t, err)
		start(t, c)
		for range 10 {
			c.Enqueue(request("a"), request("b"), request("c"), request("d"))
			time.Sleep(300 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		require.Equal(t, int32(3), most.Load())
	})
}

// TestQueueWait: a run can read how long its key waited for a worker.
func TestQueueWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waited := map[string]time.Duration{}
		c, err := controller.New(reconcile.Func(func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
			waited[r.Name] = controller.QueueWait(ctx)
			time.Sleep(time.Second)
			return reconcile.Result{}, nil
		}), controller.Deps{}, controller.Config{Name: "test", Workers: 1})
		require.NoError(t, err)
		stop := start(t, c)
		c.Enqueue(request("a"), request("b"))
		time.Sleep(time.Minute)
		stop()
		require.Equal(t, map[string]time.Duration{"a": 0, "b": time.Second}, waited)
		require.Zero(t, controller.QueueWait(t.Context()), "outside of a run")
	})
}

// TestEnqueueAfter: the earliest of several requests counts, and a run before its time does not replace it.
func TestEnqueueAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scriptedReconciler{answers: []func(context.Context) (reconcile.Result, error){
			result(reconcile.Result{RequeueAfter: 30 * time.Second}, nil), result(reconcile.Result{}, nil),
		}}
		c, err := controller.New(s, controller.Deps{}, controller.Config{Name: "test"})
		require.NoError(t, err)
		c.Enqueue(request("a"))
		start(t, c)
		c.EnqueueAfter(request("a"), 20*time.Second)
		c.EnqueueAfter(request("a"), 10*time.Second)
		c.EnqueueAfter(request("a"), time.Minute)
		time.Sleep(5 * time.Second)
		c.Enqueue(request("a")) // replaces the run after 30 s, not the one after 10 s
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, []time.Duration{0, 5 * time.Second, 10 * time.Second}, s.at)
		c.EnqueueAfter(request("a"), 0)
		synctest.Wait()
		require.Len(t, s.at, 4, "a delay of zero is none")
	})
}

func TestStopWaitsForRunsAndDropsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ran []string
		c, err := controller.New(reconcile.Func(func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
			ran = append(ran, r.Name)
			<-ctx.Done()
			time.Sleep(time.Second) // takes a while to clean up
			ran = append(ran, "cleaned up")
			return reconcile.Result{}, ctx.Err()
		}), controller.Deps{}, controller.Config{Name: "test"})
		require.NoError(t, err)
		c.Enqueue(request("a"), request("b"))
		stop := start(t, c)
		stop()
		require.Equal(t, []string{"a", "cleaned up"}, ran)
		require.ErrorContains(t, c.Start(t.Context()), "started before")
	})
}

func TestIdleStopIsImmediate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := controller.New(&scriptedReconciler{}, controller.Deps{}, controller.Config{Name: "test", Workers: 8})
		require.NoError(t, err)
		require.ErrorContains(t, c.Ready(), "not running")
		stop := start(t, c)
		require.NoError(t, c.Ready())
		before := time.Now()
		stop()
		require.Zero(t, time.Since(before))
		require.Error(t, c.Ready())
	})
}

func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := controller.New(reconcile.Func(func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
			<-ctx.Done()
			return reconcile.Result{}, nil
		}), controller.Deps{}, controller.Config{Name: "test", StuckAfter: time.Minute})
		require.NoError(t, err)
		c.Enqueue(request("a"))
		start(t, c)
		time.Sleep(time.Minute)
		require.NoError(t, c.Healthy())
		time.Sleep(1)
		require.ErrorContains(t, c.Healthy(), "has taken 1m0s")
	})
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewPedanticRegistry()
		s := &scriptedReconciler{answers: []func(context.Context) (reconcile.Result, error){
			result(reconcile.Result{}, errors.New("failed")), result(reconcile.Result{}, nil),
			result(reconcile.Result{RequeueAfter: time.Hour}, nil),
		}}
		c, err := controller.New(s, controller.Deps{Registerer: registry},
			controller.Config{Name: "test", BackoffMin: 2 * time.Second})
		require.NoError(t, err)
		c.Enqueue(request("a"))
		stop := start(t, c)
		require.Equal(t, 1.0, value(t, registry, "berth_controller_rate_limited"))
		time.Sleep(3 * time.Second)
		c.Enqueue(request("a"))
		synctest.Wait()
		for name, want := range map[string]float64{
			"workqueue_adds_total":                        2,
			"workqueue_retries_total":                     1,
			"workqueue_depth":                             0,
			"workqueue_queue_duration_seconds":            3,
			"workqueue_work_duration_seconds":             3,
			"workqueue_unfinished_work_seconds":           0,
			"workqueue_longest_running_processor_seconds": 0,
			"berth_controller_oldest_age_seconds":         0,
			"berth_controller_delayed":                    1,
			"berth_controller_rate_limited":               0,
			"berth_controller_rate_limited_seconds_total": 2,
			"berth_controller_in_flight":                  0,
			"berth_controller_reconcile_total":            3,
		} {
			require.Equal(t, want, value(t, registry, name), name)
		}
		stop()
		families, err := registry.Gather()
		require.NoError(t, err)
		require.Empty(t, families, "metrics end with the controller")
	})
}

func TestEachResultIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewPedanticRegistry()
		failed := result(reconcile.Result{}, errors.New("failed"))
		s := &scriptedReconciler{answers: []func(context.Context) (reconcile.Result, error){
			failed, func(context.Context) (reconcile.Result, error) { panic("oh") }, failed,
			result(reconcile.Result{Requeue: true}, nil), result(reconcile.Result{RequeueAfter: time.Second}, nil),
			result(reconcile.Result{}, reconcile.TerminalError(errors.New("bad"))),
		}}
		c, err := controller.New(s, controller.Deps{Registerer: registry}, controller.Config{Name: "test"})
		require.NoError(t, err)
		c.Enqueue(request("a"))
		start(t, c)
		time.Sleep(time.Hour)
		families, err := registry.Gather()
		require.NoError(t, err)
		got := map[string]float64{}
		for _, family := range families {
			if family.GetName() == "berth_controller_reconcile_total" {
				for _, m := range family.GetMetric() {
					for _, label := range m.GetLabel() {
						if label.GetName() == "result" {
							got[label.GetValue()] = m.GetCounter().GetValue()
						}
					}
				}
			}
		}
		require.Equal(t, map[string]float64{
			"success": 0, "error": 2, "terminal_error": 1, "panic": 1, "requeue": 1, "requeue_after": 1,
		}, got)
	})
}

// value sums a metric over its labels; of a histogram it counts the observations.
func value(t *testing.T, registry prometheus.Gatherer, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		sum := 0.0
		for _, m := range family.GetMetric() {
			sum += m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
		return sum
	}
	t.Fatalf("no metric %s", name)
	return 0
}

func TestNewRefusesBadConfig(t *testing.T) {
	for field, config := range map[string]controller.Config{
		"Name":       {},
		"Workers":    {Name: "x", Workers: -1},
		"BackoffMin": {Name: "x", BackoffMin: -1},
		"BackoffMax": {Name: "x", BackoffMin: time.Hour},
		"StuckAfter": {Name: "x", StuckAfter: -1},
		"Timeout":    {Name: "x", Timeout: -1},
	} {
		_, err := controller.New(&scriptedReconciler{}, controller.Deps{}, config)
		require.ErrorContains(t, err, "Config."+field)
	}
	_, err := controller.New(nil, controller.Deps{}, controller.Config{Name: "x"})
	require.ErrorContains(t, err, "a reconciler is required")
}
