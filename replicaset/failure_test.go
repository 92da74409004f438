package replicaset_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/replicaset"
	"github.com/berth-dev/berth/timeline"
)

func TestQuotaRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeServer()
		refused := 0
		var allowed atomic.Bool
		a.fault = func(verb, resource string) (error, error) {
			if verb == "create" && resource == pods && !allowed.Load() {
				refused++
				return apierrors.NewForbidden(schema.GroupResource{Resource: pods}, "web", errors.New("exceeded quota")), nil
			}
			return nil, nil
		}
		a.put(replicasets, newSet("web", 100))
		start(t, a)
		status := a.replicaSet(ns, "web").Status
		require.Len(t, status.Conditions, 1)
		require.Equal(t, appsv1.ReplicaSetReplicaFailure, status.Conditions[0].Type)
		require.Equal(t, corev1.ConditionTrue, status.Conditions[0].Status)
		require.Equal(t, "FailedCreate", status.Conditions[0].Reason)
		require.Contains(t, status.Conditions[0].Message, "exceeded quota")
		require.Equal(t, int64(1), status.ObservedGeneration)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.LessOrEqual(t, refused, 14, "one at a time, ever more slowly")
		allowed.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, web(a), 100)
		require.Empty(t, a.replicaSet(ns, "web").Status.Conditions)
	})
}

func TestTerminatingNamespaceIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeServer()
		a.fault = func(verb, resource string) (error, error) {
			if verb != "create" || resource != pods {
				return nil, nil
			}
			err := apierrors.NewForbidden(schema.GroupResource{Resource: pods}, "web", errors.New("being terminated"))
			err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
			return err, nil
		}
		a.put(replicasets, newSet("web", 3))
		start(t, a)
		require.Empty(t, a.replicaSet(ns, "web").Status.Conditions)
	})
}

// TestLostAnswers loses the answers of the first requests of each kind after they were carried out.
func TestLostAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeServer()
		a.lag = func() time.Duration { return 5 * time.Second }
		lost := map[string]int{}
		a.fault = func(verb, resource string) (error, error) {
			if request := verb + " " + resource; (verb == "create" || verb == "delete") && lost[request] < 2 {
				lost[request]++
				return nil, context.DeadlineExceeded
			}
			return nil, nil
		}
		a.put(replicasets, newSet("web", 2))
		start(t, a)
		time.Sleep(4 * time.Second) // well within the lag
		synctest.Wait()
		require.Len(t, web(a), 2)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, web(a), 2)
		scale(a, "web", 1)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, web(a), 1)
		require.Equal(t, map[string]int{"create pods": 2, "delete pods": 1}, lost)
		require.Equal(t, 1, a.requests["delete pods"])
	})
}

func TestNewRefusesBadConfig(t *testing.T) {
	_, err := replicaset.New(replicaset.Deps{}, replicaset.Config{})
	require.ErrorContains(t, err, "Client")
	_, err = replicaset.New(replicaset.Deps{Client: newFakeServer().client}, replicaset.Config{Workers: -1})
	require.ErrorContains(t, err, "Workers")
	_, err = replicaset.New(replicaset.Deps{Client: newFakeServer().client}, replicaset.Config{Recheck: -1})
	require.ErrorContains(t, err, "Recheck")
}

// TestStagesHaveTheQueueWait: the time that a ReplicaSet's key waited for a worker is in its stage.
func TestStagesHaveTheQueueWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeServer()
		a.fault = func(verb, resource string) (error, error) {
			if verb == "create" && resource == pods {
				time.Sleep(time.Second)
			}
			return nil, nil
		}
		records := timeline.New(clock.RealClock{}, 0)
		c, err := replicaset.New(replicaset.Deps{Client: a.client, Timeline: records, Recorder: &record.FakeRecorder{}},
			replicaset.Config{Workers: 1})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Start(ctx) }()
		// No watch may begin while a creation sleeps: it waits for the mutex of the fake client, and the bubble's time stands still.
		synctest.Wait()
		a.put(replicasets, newSet("first", 1))
		a.put(replicasets, newSet("second", 1))
		time.Sleep(time.Minute)
		synctest.Wait()
		cancel()
		require.NoError(t, <-done)
		var waits []float64
		for _, name := range []string{"first", "second"} {
			record, ok := records.Record(a.objects[replicasets][key(ns, name)].GetUID())
			require.True(t, ok)
			require.Len(t, record.Stages, 1)
			waits = append(waits, record.Stages[0].WaitMs)
		}
		require.ElementsMatch(t, []float64{0, 1000}, waits)
	})
}

// TestSendsEvents lets the controller record events by itself.
func TestSendsEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeServer()
		fail := true
		a.fault = func(verb, resource string) (error, error) {
			if verb == "create" && resource == pods && fail {
				fail = false
				return apierrors.NewForbidden(schema.GroupResource{Resource: pods}, "web", errors.New("not today")), nil
			}
			return nil, nil
		}
		a.put(replicasets, newSet("web", 1))
		records := timeline.New(clock.RealClock{}, 0)
		c, err := replicaset.New(replicaset.Deps{
			Client: a.client, Timeline: records, Registerer: prometheus.NewPedanticRegistry(),
		}, replicaset.Config{})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Start(ctx) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		scale(a, "web", 0)
		time.Sleep(time.Minute)
		synctest.Wait()
		cancel()
		require.NoError(t, <-done)
		time.Sleep(time.Minute) // the broadcaster's goroutines end on their own
		synctest.Wait()
		a.mu.Lock()
		defer a.mu.Unlock()
		require.Len(t, a.events, 3)
		// A warning does not wait for other events, nor they for it.
		slices.SortStableFunc(a.events, func(x, y *corev1.Event) int { return -cmp.Compare(x.Type, y.Type) })
		for i, want := range []struct{ kind, reason, message string }{
			{"Warning", "FailedCreate", "Error creating: "}, {"Normal", "SuccessfulCreate", "Created pod: web-"},
			{"Normal", "SuccessfulDelete", "Deleted pod: web-"},
		} {
			require.Equal(t, want.kind, a.events[i].Type)
			require.Equal(t, want.reason, a.events[i].Reason)
			require.True(t, strings.HasPrefix(a.events[i].Message, want.message), a.events[i].Message)
			require.Equal(t, "ReplicaSet", a.events[i].InvolvedObject.Kind)
			require.Equal(t, "replicaset-controller", a.events[i].Source.Component)
		}
		record, ok := records.Record(a.objects[replicasets][key(ns, "web")].GetUID())
		require.True(t, ok)
		var stages []string
		for _, stage := range record.Stages {
			stages = append(stages, fmt.Sprint(stage.Name, " ", stage.Subject, " ", stage.Error != ""))
		}
		require.Equal(t, []string{
			"Reconcile create pods true", "Reconcile create pods false", "Reconcile delete pods false",
		}, stages)
	})
}
