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

// judge watches every Pod write and knows, for each ReplicaSet, what was asked for within the time that the
// controller may not have heard of yet.
type judge struct {
	mu      sync.Mutex
	sets    map[string]*account // by name
	overs   []string            // what went wrong
	writes  int
	started time.Time
}

// account is the book on one ReplicaSet.
type account struct {
	live    map[types.UID]bool
	asked   []dated // sizes asked for, oldest first
	removed []dated // Pods that others took away; amount is 1 each
}

type dated struct {
	at     time.Time
	amount int
}

// bounds are the smallest and largest size asked for within the staleness before now.
func (c *account) bounds(now time.Time) (low, high int) {
	last := c.asked[len(c.asked)-1]
	low, high = last.amount, last.amount
	for i := len(c.asked) - 2; i >= 0; i-- {
		low, high = min(low, c.asked[i].amount), max(high, c.asked[i].amount)
		if now.Sub(c.asked[i].at) > staleness {
			break // in force until a moment that the controller may still live in
		}
	}
	return low, high
}

// missing counts the Pods that others took away and that the controller may still believe in.
func (c *account) missing(now time.Time) int {
	count := 0
	for _, gone := range c.removed {
		if now.Sub(gone.at) <= staleness+time.Second {
			count++
		}
	}
	return count
}

// wrote checks one write of the controller against the book.
func (j *judge) wrote(verb string, pod *corev1.Pod) {
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
			j.overs = append(j.overs, fmt.Sprintf("%v: %s has %d pods, at most %d were asked for",
				now.Sub(j.started), ref.Name, len(book.live), high))
		}
		return
	}
	delete(book.live, pod.UID)
	if len(book.live)+book.missing(now) < low {
		j.overs = append(j.overs, fmt.Sprintf("%v: %s has %d pods and lost %d, at least %d were asked for",
			now.Sub(j.started), ref.Name, len(book.live), book.missing(now), low))
	}
}

// lost notes that somebody else took a Pod away.
func (j *judge) lost(name string, uid types.UID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if book := j.sets[name]; book.live[uid] {
		delete(book.live, uid)
		book.removed = append(book.removed, dated{at: time.Now(), amount: 1})
	}
}

func (j *judge) ask(name string, size int32) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.sets[name] == nil {
		j.sets[name] = &account{live: map[types.UID]bool{}}
	}
	j.sets[name].asked = append(j.sets[name].asked, dated{at: time.Now(), amount: int(size)})
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
	synctest.Test(t, func(t *testing.T) { playFaults(t, seed, sets, steps) })
}

func playFaults(t *testing.T, seed uint64, sets, steps int) {
	random := &source{random: rand.New(rand.NewPCG(seed, 1))}
	a, j := newAPI(), &judge{sets: map[string]*account{}, started: time.Now()}
	a.lag = func() time.Duration { return time.Duration(random.n(int(staleness))) }
	a.wrote = j.wrote
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
		j.ask(name(i), size)
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
		requireSettled(t, a, name(i))
	}
	stop()
	t.Logf("%d pod writes in %v", j.writes, time.Since(j.started))
	require.Empty(t, j.overs)
	require.Greater(t, j.writes, sets)
}

// disturb does something to one ReplicaSet, as users and kubelets do.
func disturb(a *api, j *judge, random *source, name string) {
	uid := a.replicaSet(ns, name).UID
	owned := a.podsOf(uid)
	if len(owned) == 0 || random.n(3) == 0 {
		size := int32(random.n(8))
		j.ask(name, size)
		scale(a, name, size)
		return
	}
	pod := owned[random.n(len(owned))]
	switch random.n(5) {
	case 0:
		j.lost(name, pod.UID)
		a.erase(pods, ns, pod.Name, random.n(2) == 0)
	case 1:
		j.lost(name, pod.UID)
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

func requireSettled(t *testing.T, a *api, name string) {
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
