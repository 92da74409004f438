package status_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/kubelet/status"
	"github.com/berth-dev/berth/timeline"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func apiPod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}}
}

func startWriter(t *testing.T, client *fake.Clientset) *status.Writer {
	return startWriterAt(t, client, clock.RealClock{})
}

func startWriterAt(t *testing.T, client *fake.Clientset, clock clock.WithTicker) *status.Writer {
	return startWriterWith(t, status.WriterDeps{Client: client, Clock: clock})
}

// startWriterWith starts a Writer, which ends with the test. In a synctest bubble the clean-up is a part of it, and joins what would
// be left otherwise when an assertion fails.
func startWriterWith(t *testing.T, deps status.WriterDeps) *status.Writer {
	w, err := status.NewWriter(deps, status.WriterConfig{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _ = w.Start(ctx) })
	t.Cleanup(func() { cancel(); group.Wait() })
	return w
}

func live(t *testing.T, client *fake.Clientset) *corev1.Pod {
	p, err := client.CoreV1().Pods("ns").Get(context.Background(), "p", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(t, err)
	return p
}

func TestStatusIsWrittenAndOthersConditionsStay(t *testing.T) {
	p := apiPod()
	p.Status.Conditions = []corev1.PodCondition{{Type: "x/y", Status: corev1.ConditionTrue}}
	client := fake.NewClientset(p)
	w := startWriter(t, client)
	require.True(t, w.Set(p, corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.0.2"}))
	require.False(t, w.Set(p, corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.0.2"}), "nothing changed")
	require.Eventually(t, func() bool { return live(t, client).Status.Phase == corev1.PodRunning },
		time.Minute, time.Millisecond)
	require.Len(t, live(t, client).Status.Conditions, 1)
}

// TestResourcesOfThePodAreWritten writes the resources of the Pod as a whole.
func TestResourcesOfThePodAreWritten(t *testing.T) {
	client := fake.NewClientset(apiPod())
	w := startWriter(t, client)
	w.Set(apiPod(), corev1.PodStatus{
		Phase: corev1.PodRunning, AllocatedResources: amounts("cpu", "1"), Resources: &corev1.ResourceRequirements{Limits: amounts("cpu", "2")},
	})
	require.Eventually(t, func() bool { return live(t, client).Status.Phase == corev1.PodRunning }, time.Minute, time.Millisecond)
	requireAmounts(t, amounts("cpu", "1"), live(t, client).Status.AllocatedResources)
	requireAmounts(t, amounts("cpu", "2"), live(t, client).Status.Resources.Limits)
}

func TestFailedWriteIsRetried(t *testing.T) {
	client := fake.NewClientset(apiPod())
	var once sync.Once
	client.PrependReactor("patch", "pods", func(clienttesting.Action) (failed bool, _ runtime.Object, err error) {
		once.Do(func() { failed, err = true, errors.New("api server is away") })
		return failed, nil, err
	})
	w := startWriter(t, client)
	w.Set(apiPod(), corev1.PodStatus{Phase: corev1.PodRunning})
	require.Eventually(t, func() bool { return live(t, client).Status.Phase == corev1.PodRunning },
		time.Minute, time.Millisecond)
}

// TestRefusedStatusIsRetriedRarely has the API server refuse a status as invalid: each further write is later than the one before, up to
// five minutes, the record says why, and another status is written at once.
func TestRefusedStatusIsRetriedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, records := fake.NewClientset(apiPod()), timeline.New(clock.RealClock{}, 1)
		var tried []time.Time
		client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if strings.Contains(string(action.(clienttesting.PatchActionImpl).Patch), "6.6.6.6") {
				tried = append(tried, time.Now())
				return true, nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "p", nil)
			}
			return false, nil, nil
		})
		w := startWriterWith(t, status.WriterDeps{Client: client, Timeline: records})
		w.Set(apiPod(), corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "6.6.6.6"})
		pass(20 * time.Minute)
		require.GreaterOrEqual(t, len(tried), 11)
		for i := 2; i < 9; i++ {
			require.Greater(t, tried[i].Sub(tried[i-1]), tried[i-1].Sub(tried[i-2]), "attempt %d of %v", i, tried)
		}
		require.Equal(t, 5*time.Minute, tried[10].Sub(tried[9]))
		record, found := records.Record("u")
		require.True(t, found)
		require.Equal(t, timeline.ReasonStatusRefused, record.Stages[0].Reason)
		require.NotEmpty(t, record.Stages[0].Remedy)
		w.Set(apiPod(), corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.0.2"})
		synctest.Wait()
		require.Equal(t, "10.1.0.2", live(t, client).Status.PodIP, "no time has passed")
	})
}

func TestDriftIsPutRight(t *testing.T) {
	p := apiPod()
	p.ResourceVersion = "1" // the answer to the write may come to the writer after the edit
	client := fake.NewClientset(p)
	w := startWriter(t, client)
	w.Set(p, corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.0.2"})
	right := func() bool { return live(t, client).Status.PodIP == "10.1.0.2" }
	require.Eventually(t, right, time.Minute, time.Millisecond)
	edited := live(t, client)
	edited.Status.PodIP, edited.ResourceVersion = "6.6.6.6", "2"
	edited, err := client.CoreV1().Pods("ns").UpdateStatus(context.Background(), edited, metav1.UpdateOptions{})
	require.NoError(t, err)
	w.Observe(edited)
	require.Eventually(t, right, time.Minute, time.Millisecond)
}

func TestFinishDeletesAfterTheLastStatus(t *testing.T) {
	client := fake.NewClientset(apiPod())
	w := startWriter(t, client)
	w.Set(apiPod(), corev1.PodStatus{Phase: corev1.PodFailed})
	w.Finish(apiPod())
	require.Eventually(t, func() bool { return live(t, client) == nil }, time.Minute, time.Millisecond)
	var verbs []string
	for _, action := range client.Actions() {
		if verb := action.GetVerb(); verb == "patch" || verb == "delete" {
			verbs = append(verbs, verb)
		}
	}
	require.Equal(t, []string{"patch", "delete"}, verbs)
	for _, action := range client.Actions() {
		if d, ok := action.(clienttesting.DeleteActionImpl); ok {
			require.Equal(t, int64(0), *d.DeleteOptions.GracePeriodSeconds)
			require.Equal(t, "u", string(*d.DeleteOptions.Preconditions.UID))
		}
	}
}

func TestTerminalPhaseInTheAPIIsNeverTakenBack(t *testing.T) {
	p := apiPod()
	p.Status.Phase = corev1.PodSucceeded
	client := fake.NewClientset(p)
	w := startWriter(t, client)
	w.Set(p, corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.0.2"})
	require.Eventually(t, func() bool { return live(t, client).Status.PodIP == "10.1.0.2" },
		time.Minute, time.Millisecond)
	require.Equal(t, corev1.PodSucceeded, live(t, client).Status.Phase)
}

// patches are the statuses that were written.
func patches(client *fake.Clientset) (n int) {
	for _, action := range client.Actions() {
		if action.GetVerb() == "patch" {
			n++
		}
	}
	return n
}

func TestInitialStatusIsDelayed(t *testing.T) {
	creating := corev1.PodStatus{Phase: corev1.PodPending, StartTime: &metav1.Time{Time: time.Unix(1e9, 0)},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}}}
	running := *creating.DeepCopy()
	running.Phase, running.ContainerStatuses[0].State = corev1.PodRunning,
		corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	refused := *creating.DeepCopy()
	refused.ContainerStatuses[0].State.Waiting.Reason = "ErrImagePull"
	newer := *running.DeepCopy()
	newer.ObservedGeneration = 2

	clock := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	client := fake.NewClientset(apiPod())
	w := startWriterAt(t, client, clock)
	w.Set(apiPod(), creating)
	require.Zero(t, patches(client))
	w.Set(apiPod(), running)
	require.Eventually(t, func() bool { return live(t, client).Status.Phase == corev1.PodRunning },
		time.Minute, time.Millisecond)
	require.Equal(t, 1, patches(client), "both in one")

	w.Observe(live(t, client))
	w.Set(live(t, client), newer)
	require.Eventually(t, func() bool {
		clock.Step(50 * time.Millisecond)
		return live(t, client).Status.ObservedGeneration == 2
	}, time.Minute, time.Millisecond, "a newer generation alone is written in the end")
	require.GreaterOrEqual(t, clock.Since(time.Unix(1e9, 0)), 500*time.Millisecond)

	client = fake.NewClientset(apiPod())
	w = startWriterAt(t, client, clocktesting.NewFakeClock(time.Unix(1e9, 0)))
	w.Set(apiPod(), refused)
	require.Eventually(t, func() bool { return patches(client) == 1 }, time.Minute, time.Millisecond,
		"a failure is written at once")
}

func TestInitialStatusIsWrittenAfterTheDelay(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	client := fake.NewClientset(apiPod())
	w := startWriterAt(t, client, clock)
	w.Set(apiPod(), corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSBurstable})
	require.Eventually(t, func() bool {
		clock.Step(50 * time.Millisecond)
		return live(t, client).Status.QOSClass == corev1.PodQOSBurstable
	}, time.Minute, time.Millisecond)
	require.GreaterOrEqual(t, clock.Since(time.Unix(1e9, 0)), 500*time.Millisecond)
}

// TestInitialStatusYields has other Pods being started: a status that can be delayed waits for their end, and one that cannot be delayed
// does not.
func TestInitialStatusYields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, began := fake.NewClientset(apiPod()), time.Now()
		var starting atomic.Bool
		starting.Store(true)
		var took []time.Duration
		w := startWriterWith(t, status.WriterDeps{
			Client: client, Observe: func(d time.Duration) { took = append(took, d) },
			Yields: func(since time.Time) bool { return starting.Load() && time.Since(since) < 5*time.Second },
		})

		w.Set(apiPod(), corev1.PodStatus{Phase: corev1.PodPending})
		pass(3 * time.Second)
		require.Empty(t, live(t, client).Status.Phase)
		w.Set(apiPod(), corev1.PodStatus{Phase: corev1.PodRunning})
		synctest.Wait()
		require.Equal(t, corev1.PodRunning, live(t, client).Status.Phase)

		w.Set(apiPod(), corev1.PodStatus{Phase: corev1.PodRunning, ObservedGeneration: 2})
		pass(5*time.Second - time.Nanosecond)
		require.Zero(t, live(t, client).Status.ObservedGeneration)
		pass(time.Second)
		require.EqualValues(t, 2, live(t, client).Status.ObservedGeneration, "it waits for a bounded time")

		w.Set(apiPod(), corev1.PodStatus{Phase: corev1.PodRunning, ObservedGeneration: 3})
		pass(time.Second)
		require.EqualValues(t, 2, live(t, client).Status.ObservedGeneration)
		starting.Store(false)
		pass(500 * time.Millisecond)
		require.EqualValues(t, 3, live(t, client).Status.ObservedGeneration)

		starting.Store(true)
		w.Set(apiPod(), corev1.PodStatus{Phase: corev1.PodRunning, ObservedGeneration: 4})
		pass(time.Second)
		w.Finish(apiPod())
		synctest.Wait()
		require.Nil(t, live(t, client), "the end of a Pod does not wait")
		require.Equal(t, []time.Duration{0, 0, 0, 0}, took, "what a write waits for others is not its duration")
		require.Less(t, time.Since(began), 13*time.Second)
	})
}

// TestHurriedStatusIsNotDelayed has something fail that a Pod waits for, before its first status and after it.
func TestHurriedStatusIsNotDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(apiPod())
		w := startWriterWith(t, status.WriterDeps{Client: client, Yields: func(time.Time) bool { return true }})
		w.Hurry(apiPod().UID) // nothing is known of it yet
		w.Set(apiPod(), corev1.PodStatus{Phase: corev1.PodPending})
		pass(3 * time.Second)
		require.Empty(t, live(t, client).Status.Phase)
		w.Hurry(apiPod().UID)
		synctest.Wait()
		require.Equal(t, corev1.PodPending, live(t, client).Status.Phase)

		w.Hurry(apiPod().UID)
		w.Set(apiPod(), corev1.PodStatus{Phase: corev1.PodPending, ObservedGeneration: 2})
		synctest.Wait()
		require.EqualValues(t, 2, live(t, client).Status.ObservedGeneration)

		w.Set(apiPod(), corev1.PodStatus{Phase: corev1.PodPending, ObservedGeneration: 3})
		pass(3 * time.Second)
		require.EqualValues(t, 2, live(t, client).Status.ObservedGeneration, "one write was urgent, not all that follow")
	})
}

// slowClient takes a second for each write of a Pod. A reactor that sleeps holds the lock of the fake client meanwhile: a read would
// wait for a mutex, with which the time of a synctest bubble stops, and the test would not end.
type slowClient struct{ kubernetes.Interface }

func (c slowClient) CoreV1() typedcore.CoreV1Interface { return slowCore{c.Interface.CoreV1()} }

type slowCore struct{ typedcore.CoreV1Interface }

func (c slowCore) Pods(namespace string) typedcore.PodInterface {
	return slowPods{c.CoreV1Interface.Pods(namespace)}
}

type slowPods struct{ typedcore.PodInterface }

func (p slowPods) Patch(
	ctx context.Context, name string, of types.PatchType, data []byte, options metav1.PatchOptions, subresources ...string,
) (*corev1.Pod, error) {
	time.Sleep(time.Second)
	return p.PodInterface.Patch(ctx, name, of, data, options, subresources...)
}

// TestHurryDuringAWriteIsForTheNextStatus has something fail while an earlier status is being written.
func TestHurryDuringAWriteIsForTheNextStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(apiPod())
		w := startWriterWith(t, status.WriterDeps{Client: slowClient{client}})
		w.Set(apiPod(), corev1.PodStatus{Phase: corev1.PodRunning})
		synctest.Wait()
		w.Hurry(apiPod().UID)
		pass(time.Second)
		require.Equal(t, corev1.PodRunning, live(t, client).Status.Phase)
		w.Set(apiPod(), corev1.PodStatus{Phase: corev1.PodRunning, ObservedGeneration: 2})
		pass(time.Second)
		require.EqualValues(t, 2, live(t, client).Status.ObservedGeneration)
	})
}

func TestDelayIsNotCountedAsWriteDuration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := timeline.New(clock.RealClock{}, 1)
		var took []time.Duration
		w := startWriterWith(t, status.WriterDeps{
			Client: fake.NewClientset(apiPod()), Timeline: records, Observe: func(d time.Duration) { took = append(took, d) },
		})

		w.Set(apiPod(), corev1.PodStatus{Phase: corev1.PodPending})
		pass(300 * time.Millisecond)
		w.Set(apiPod(), corev1.PodStatus{Phase: corev1.PodRunning})
		synctest.Wait()
		require.Equal(t, []time.Duration{0}, took)
		record, found := records.Record("u")
		require.True(t, found)
		require.True(t, record.Stages[0].Start.Equal(time.Now()), "%+v", record.Stages)
		require.Zero(t, record.Stages[0].WaitMs)

		w.Set(apiPod(), corev1.PodStatus{Phase: corev1.PodRunning, ObservedGeneration: 2})
		pass(time.Second)
		require.Equal(t, []time.Duration{0, 0}, took, "after the delay")
		record, _ = records.Record("u")
		require.Zero(t, record.Stages[1].WaitMs)
	})
}

// pass lets time pass in a synctest bubble, until all goroutines wait again.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
