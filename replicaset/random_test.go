package replicaset_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// staleness is the most that the informers lag behind in the fault test.
const staleness = 5 * time.Second

// writeChecker watches every Pod write and knows, for each ReplicaSet, what was asked for within the time that the
// controller may not have heard of yet.
type writeChecker struct {
	mu         sync.Mutex
	sets       map[string]*setHistory // by name
	violations []string               // what went wrong
	writes     int
	started    time.Time
}

// setHistory is the book on one ReplicaSet.
type setHistory struct {
	live    map[types.UID]bool
	sizes   []datedAmount // sizes asked for, oldest first
	removed []datedAmount // Pods that others removed; amount is 1 each
}

type datedAmount struct {
	at     time.Time
	amount int
}

// bounds are the smallest and largest size asked for within the staleness before now.
func (c *setHistory) bounds(now time.Time) (low, high int) {
	last := c.sizes[len(c.sizes)-1]
	low, high = last.amount, last.amount
	for i := len(c.sizes) - 2; i >= 0; i-- {
		low, high = min(low, c.sizes[i].amount), max(high, c.sizes[i].amount)
		if now.Sub(c.sizes[i].at) > staleness {
			break // in force until a moment that the controller may still live in
		}
	}
	return low, high
}

// missing counts the Pods that others removed and that the controller may still count.
func (c *setHistory) missing(now time.Time) int {
	count := 0
	for _, gone := range c.removed {
		if now.Sub(gone.at) <= staleness+time.Second {
			count++
		}
	}
	return count
}

// checkWrite checks one write of the controller against the book.
func (j *writeChecker) checkWrite(verb string, pod *corev1.Pod) {
	ref := metav1.GetControllerOf(pod)
	if ref == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.writes++
	book, now := j.sets[ref.Name], time.Now()
	low, high := book.bounds(now)
	if verb == "create" {
		book.live[pod.UID] = true
		if len(book.live) > high {
			j.violations = append(j.violations, fmt.Sprintf("%v: %s has %d pods, at most %d were asked for",
				now.Sub(j.started), ref.Name, len(book.live), high))
		}
		return
	}
	delete(book.live, pod.UID)
	if len(book.live)+book.missing(now) < low {
		j.violations = append(j.violations, fmt.Sprintf("%v: %s has %d pods and lost %d, at least %d were asked for",
			now.Sub(j.started), ref.Name, len(book.live), book.missing(now), low))
	}
}

// recordRemoved records that another client removed a Pod.
func (j *writeChecker) recordRemoved(name string, uid types.UID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if book := j.sets[name]; book.live[uid] {
		delete(book.live, uid)
		book.removed = append(book.removed, datedAmount{at: time.Now(), amount: 1})
	}
}

func (j *writeChecker) recordSize(name string, size int32) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.sets[name] == nil {
		j.sets[name] = &setHistory{live: map[types.UID]bool{}}
	}
	j.sets[name].sizes = append(j.sets[name].sizes, datedAmount{at: time.Now(), amount: int(size)})
}

// TestFaults plays an hour of trouble: random scaling, Pods that die or are deleted, refused requests, lost answers,
// informers that lag up to 5 s, and controllers that are killed. At no moment may there be more Pods than asked for,
// or more deletions; and afterwards everything must come to rest as wanted.
func TestFaults(t *testing.T) {
	sets, steps := 1000, 4000
	if testing.Short() {
		sets, steps = 50, 500
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) { runFaults(t, seed, sets, steps) })
}

func runFaults(t *testing.T, seed uint64, sets, steps int) {
	random := &source{random: rand.New(rand.NewPCG(seed, 1))}
	a, j := newFakeServer(), &writeChecker{sets: map[string]*setHistory{}, started: time.Now()}
	a.lag = func() time.Duration { return time.Duration(random.n(int(staleness))) }
	a.wrote = j.checkWrite
	var trouble atomic.Bool
	trouble.Store(true)
	a.fault = func(verb, _ string) (before, after error) {
		switch p := random.n(100); {
		case !trouble.Load() || verb == "list":
		case p < 4:
			return apierrors.NewInternalError(errors.New("refused")), nil
		case p < 6:
			return apierrors.NewTooManyRequests("refused", 1), nil
		case p < 9:
			return nil, context.DeadlineExceeded
		case p < 10:
			return context.DeadlineExceeded, nil
		}
		return nil, nil
	}
	name := func(i int) string { return fmt.Sprintf("set-%d", i) }
	for i := range sets {
		size := int32(random.n(4))
		j.recordSize(name(i), size)
		a.put(replicasets, newSet(name(i), size))
	}
	stop := start(t, a)
	for range steps {
		time.Sleep(time.Duration(random.n(int(2 * time.Second))))
		disturb(a, j, random, name(random.n(sets)))
		if random.n(200) == 0 {
			stop()
			stop = start(t, a)
		}
	}
	trouble.Store(false)
	time.Sleep(20 * time.Minute) // longer than any delay after a failure
	synctest.Wait()
	for i := range sets {
		requireStable(t, a, name(i))
	}
	stop()
	t.Logf("%d pod writes in %v", j.writes, time.Since(j.started))
	require.Empty(t, j.violations)
	require.Greater(t, j.writes, sets)
}

// disturb does something to one ReplicaSet, as users and kubelets do.
func disturb(a *fakeServer, j *writeChecker, random *source, name string) {
	uid := a.replicaSet(ns, name).UID
	owned := a.podsOf(uid)
	if len(owned) == 0 || random.n(3) == 0 {
		size := int32(random.n(8))
		j.recordSize(name, size)
		scale(a, name, size)
		return
	}
	pod := owned[random.n(len(owned))]
	switch random.n(5) {
	case 0:
		j.recordRemoved(name, pod.UID)
		a.erase(pods, ns, pod.Name, random.n(2) == 0)
	case 1:
		j.recordRemoved(name, pod.UID)
		change(a, pods, ns, pod.Name, func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed })
	case 2:
		if pod.DeletionTimestamp != nil {
			a.erase(pods, ns, pod.Name, true)
		}
	default:
		if pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodFailed {
			ready(a, pod, fmt.Sprintf("node-%d", random.n(5)))
		}
	}
}

func requireStable(t *testing.T, a *fakeServer, name string) {
	t.Helper()
	rs := a.replicaSet(ns, name)
	live := int32(0)
	for _, pod := range a.podsOf(rs.UID) {
		if pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodFailed {
			live++
		}
	}
	require.Equal(t, *rs.Spec.Replicas, live, name)
	require.Equal(t, live, rs.Status.Replicas, name)
	require.Equal(t, rs.Generation, rs.Status.ObservedGeneration, name)
	require.Equal(t, []appsv1.ReplicaSetCondition(nil), rs.Status.Conditions, name)
}

// source is a random source for several goroutines.
type source struct {
	mu     sync.Mutex
	random *rand.Rand
}

func (s *source) n(limit int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.random.IntN(limit)
}
