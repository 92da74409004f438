package eventsink_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/internal/eventsink"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a sink that runs, and its API server.
type fixture struct {
	*testing.T
	sink   *eventsink.Sink
	client *fake.Clientset
	stop   func()
	// allow is closed by the test to let the events pass that yield.
	allow chan struct{}

	mu       sync.Mutex
	requests []string // "verb name"
	err      error    // of all requests
}

// run runs a test in a synctest bubble. Events that are no Warnings yield until the test allows them, if yields is set. The
// sink is stopped at the end.
func run(t *testing.T, yields bool, config eventsink.Config, test func(f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{T: t, client: fake.NewClientset(), allow: make(chan struct{})}
		f.client.PrependReactor("*", "events", func(action clienttesting.Action) (bool, runtime.Object, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.err != nil {
				return true, nil, f.err
			}
			switch action := action.(type) {
			case clienttesting.CreateActionImpl:
				f.requests = append(f.requests, "create "+action.Object.(*corev1.Event).Name)
			case clienttesting.PatchActionImpl:
				f.requests = append(f.requests, "patch "+action.Name)
			case clienttesting.UpdateActionImpl:
				f.requests = append(f.requests, "update "+action.Object.(*corev1.Event).Name)
			}
			return false, nil, nil
		})
		deps := eventsink.Deps{Client: f.client.CoreV1()}
		if yields {
			deps.Yield = func(ctx context.Context, since time.Time) {
				require.False(t, since.IsZero())
				select {
				case <-f.allow:
				case <-ctx.Done():
				}
			}
		}
		var err error
		f.sink, err = eventsink.New(deps, config)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.sink.Start(ctx) }()
		f.stop = sync.OnceFunc(func() {
			cancel()
			require.NoError(t, <-done)
		})
		defer f.stop()
		test(f)
	})
}

func (f *fixture) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// written returns the requests since the last call.
func (f *fixture) written() []string {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	requests := f.requests
	f.requests = nil
	return requests
}

func (f *fixture) create(eventType, name string) {
	f.Helper()
	_, err := f.sink.Create(newEvent(eventType, name))
	require.NoError(f, err)
}

func newEvent(eventType, name string) *corev1.Event {
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Type: eventType, LastTimestamp: metav1.Now()}
}

const normal, warning = corev1.EventTypeNormal, corev1.EventTypeWarning

func TestWritesInOrder(t *testing.T) {
	run(t, false, eventsink.Config{}, func(f *fixture) {
		f.create(normal, "a")
		_, err := f.sink.Patch(newEvent(normal, "a"), []byte(`{"count":2}`))
		require.NoError(t, err)
		_, err = f.sink.Update(newEvent(normal, "a"))
		require.NoError(t, err)
		f.create(normal, "b")
		require.Equal(t, []string{"create a", "patch a", "update a", "create b"}, f.written())
	})
}

// Repetitions are counted before the first event is written.
func TestRecorderCountsRepetitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, allow := fake.NewClientset(), make(chan struct{})
		recorder, stop, err := eventsink.StartRecorder(t.Context(), eventsink.Deps{
			Client: client.CoreV1(), Yield: func(context.Context, time.Time) { <-allow },
		}, eventsink.Config{}, corev1.EventSource{Component: "test"})
		require.NoError(t, err)
		defer stop()
		object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "uid"}}
		for range 3 {
			recorder.Event(object, normal, "Pulled", "image is present")
		}
		synctest.Wait()
		require.Empty(t, client.Actions())
		close(allow)
		synctest.Wait()
		events, err := client.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Len(t, events.Items, 1)
		require.EqualValues(t, 3, events.Items[0].Count)
	})
}

func TestRepetitionOfDeletedEventIsCreated(t *testing.T) {
	run(t, false, eventsink.Config{}, func(f *fixture) {
		_, err := f.sink.Patch(newEvent(normal, "a"), []byte(`{"count":2}`))
		require.NoError(t, err)
		require.Equal(t, []string{"patch a", "create a"}, f.written())
	})
}

func TestWarningsDoNotYield(t *testing.T) {
	run(t, true, eventsink.Config{}, func(f *fixture) {
		f.create(normal, "a")
		f.create(warning, "b")
		require.Equal(t, []string{"create b"}, f.written())
		close(f.allow)
		require.Equal(t, []string{"create a"}, f.written())
	})
}

// Late events wait for a longer time of their own, and those that are not late do not wait for them.
func TestLateEventsDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, allow := fake.NewClientset(), make(chan struct{})
		sink, err := eventsink.New(eventsink.Deps{Client: client.CoreV1(), Late: &eventsink.Late{
			Is: func(event *corev1.Event) bool { return event.Name == "late" },
			Yield: func(ctx context.Context, _ time.Time) {
				select {
				case <-allow:
				case <-ctx.Done():
				}
			},
		}}, eventsink.Config{})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- sink.Start(ctx) }()
		written := func() (names []string) {
			synctest.Wait()
			for _, action := range client.Actions() {
				names = append(names, action.(clienttesting.CreateActionImpl).Object.(*corev1.Event).Name)
			}
			return names
		}
		for _, event := range []*corev1.Event{newEvent(normal, "late"), newEvent(normal, "a"), newEvent(warning, "b")} {
			_, err := sink.Create(event)
			require.NoError(t, err)
		}
		require.ElementsMatch(t, []string{"a", "b"}, written())
		close(allow)
		require.ElementsMatch(t, []string{"a", "b", "late"}, written())
		cancel()
		require.NoError(t, <-done)
	})
}

func TestNothingYieldsAtTheEnd(t *testing.T) {
	run(t, true, eventsink.Config{Debounce: time.Hour}, func(f *fixture) {
		f.create(normal, "a")
		f.create(warning, "b")
		require.Empty(t, f.written())
		f.stop()
		require.ElementsMatch(t, []string{"create a", "create b"}, f.written())
	})
}

func TestDebounceHoldsTheFirstEventAfterAPause(t *testing.T) {
	const debounce = 500 * time.Millisecond
	run(t, false, eventsink.Config{Debounce: debounce}, func(f *fixture) {
		f.create(normal, "a")
		time.Sleep(debounce - 1)
		f.create(normal, "b")
		require.Empty(t, f.written())
		time.Sleep(1)
		require.Equal(t, []string{"create a", "create b"}, f.written())

		time.Sleep(eventsink.DefaultQuiet - 1)
		f.create(normal, "c")
		require.Equal(t, []string{"create c"}, f.written(), "less than Quiet after the last event")

		time.Sleep(eventsink.DefaultQuiet)
		f.create(normal, "d")
		require.Empty(t, f.written())
		time.Sleep(debounce)
		require.Equal(t, []string{"create d"}, f.written())
	})
}

func TestUnreachableAPIServerIsTriedAgain(t *testing.T) {
	run(t, false, eventsink.Config{}, func(f *fixture) {
		f.fail(&url.Error{Op: "Post", Err: errors.New("connection refused")})
		f.create(normal, "a")
		f.create(normal, "b")
		time.Sleep(time.Minute)
		require.Empty(t, f.written())
		f.fail(nil)
		time.Sleep(10 * time.Second)
		require.Equal(t, []string{"create a", "create b"}, f.written())
	})
}

func TestRejectedEventIsDropped(t *testing.T) {
	run(t, false, eventsink.Config{}, func(f *fixture) {
		f.fail(apierrors.NewForbidden(corev1.Resource("events"), "a", errors.New("no")))
		f.create(normal, "a")
		require.Empty(t, f.written())
		f.fail(nil)
		f.create(normal, "b")
		require.Equal(t, []string{"create b"}, f.written())
	})
}

func TestDrainIsBounded(t *testing.T) {
	run(t, false, eventsink.Config{DrainTimeout: time.Second}, func(f *fixture) {
		f.fail(errors.New("connection refused"))
		f.create(normal, "a")
		synctest.Wait()
		began := time.Now()
		f.stop()
		require.LessOrEqual(t, time.Since(began), time.Second)
	})
}

func TestFullQueueDropsEvents(t *testing.T) {
	run(t, true, eventsink.Config{MaxQueued: 2}, func(f *fixture) {
		f.create(normal, "taken")
		synctest.Wait()
		for i := range 4 {
			f.create(normal, fmt.Sprint(i))
		}
		f.create(warning, "warning")
		require.Equal(t, []string{"create warning"}, f.written(), "each kind has a queue")
		f.stop()
		require.Equal(t, []string{"create taken", "create 0", "create 1"}, f.written())
	})
}

func TestNewChecksItsArguments(t *testing.T) {
	_, err := eventsink.New(eventsink.Deps{}, eventsink.Config{})
	require.EqualError(t, err, "eventsink: Deps.Client is required")
	_, err = eventsink.New(eventsink.Deps{Client: fake.NewClientset().CoreV1()}, eventsink.Config{Debounce: -1})
	require.ErrorContains(t, err, "negative")
	_, err = eventsink.New(eventsink.Deps{Client: fake.NewClientset().CoreV1(), Late: &eventsink.Late{}}, eventsink.Config{})
	require.EqualError(t, err, "eventsink: Deps.Late needs Is and Yield")
}
