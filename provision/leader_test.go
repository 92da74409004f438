package provision_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/provision"
)

func withUID(claim *corev1.PersistentVolumeClaim, uid types.UID) *corev1.PersistentVolumeClaim {
	claim.UID = uid
	return claim
}

// candidate is a controller with leader election.
type candidate struct {
	ctrl *provision.ProvisionController
	stop context.CancelFunc
	done chan error
}

func runCandidate(t *testing.T, api *fakeAPI, process *process, p provision.Provisioner, options ...option) *candidate {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	if process != nil {
		process.kill = cancel
	}
	options = append(options, provision.LeaderElectionNamespace("ns"), provision.EventRecorder(&record.FakeRecorder{}))
	ctrl, err := provision.New(api.client(process), driverName, p, options...)
	require.NoError(t, err)
	c := &candidate{ctrl: ctrl, stop: cancel, done: make(chan error, 1)}
	go func() { c.done <- ctrl.RunContext(ctx) }()
	synctest.Wait()
	return c
}

func TestOnlyTheLeaderWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI(newClass("fast"))
		first, second := &fakeProvisioner{}, &fakeProvisioner{}
		one := runCandidate(t, api, nil, first)
		two := runCandidate(t, api, nil, second)
		require.True(t, one.ctrl.HasRun())
		require.False(t, two.ctrl.HasRun())
		api.createClaim(t, newClaim("claim", "fast"))
		synctest.Wait()
		require.Equal(t, []int{1, 0}, []int{first.callCount(), second.callCount()})

		one.stop()
		require.NoError(t, <-one.done)
		time.Sleep(provision.DefaultRetryPeriod * 5 / 2) // the bubble's time; far less than the lease's duration
		synctest.Wait()
		require.True(t, two.ctrl.HasRun(), "the lease was released, not left to expire")
		api.createClaim(t, newClaim("claim2", "fast"))
		synctest.Wait()
		require.Equal(t, []int{1, 1}, []int{first.callCount(), second.callCount()})
		two.stop()
		require.NoError(t, <-two.done)
		lease, err := api.client(nil).CoordinationV1().Leases("ns").Get(t.Context(), "example.com-disk", metav1.GetOptions{})
		require.NoError(t, err)
		require.Empty(t, *lease.Spec.HolderIdentity)
	})
}

func TestRunnablesRunWhileLeading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI(newClass("fast"))
		working := make(chan string, 10)
		beside := func(name string) option {
			return provision.WithRunnable(func(ctx context.Context) error {
				working <- name
				<-ctx.Done()
				working <- name + " ended"
				return nil
			})
		}
		one := runCandidate(t, api, nil, &fakeProvisioner{}, beside("one"))
		two := runCandidate(t, api, nil, &fakeProvisioner{}, beside("two"))
		require.Equal(t, "one", <-working)
		require.Empty(t, working)
		one.stop()
		require.NoError(t, <-one.done)
		time.Sleep(time.Minute) // the bubble's time
		require.Equal(t, []string{"one ended", "two"}, []string{<-working, <-working})
		two.stop()
		require.NoError(t, <-two.done)

		broken := errors.New("broken")
		three := runCandidate(t, api, nil, &fakeProvisioner{}, provision.WithRunnable(func(context.Context) error { return broken }))
		require.ErrorIs(t, <-three.done, broken, "it does not fail in silence")
		three.stop()
	})
}

func TestTheLeaseIsHeldUntilCallsHaveEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI(newClass("fast"))
		slow := &fakeProvisioner{provisionErr: func(provision.VolumeOptions) error { time.Sleep(time.Minute); return nil }}
		one := runCandidate(t, api, nil, slow)
		two := runCandidate(t, api, nil, &fakeProvisioner{})
		api.createClaim(t, newClaim("claim", "fast"))
		synctest.Wait()
		one.stop()
		time.Sleep(50 * time.Second)
		require.False(t, two.ctrl.HasRun())
		require.NoError(t, <-one.done)
		require.Len(t, api.volumes(t), 1)
		time.Sleep(provision.DefaultRetryPeriod * 5 / 2)
		require.True(t, two.ctrl.HasRun())
		two.stop()
		require.NoError(t, <-two.done)
	})
}

func TestLosingTheLeaseEndsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newFakeAPI(newClass("fast"))
		lost := false
		process := &process{nextFault: func(what string) fault {
			if lost && strings.HasSuffix(what, " leases") {
				return failBefore
			}
			return noFault
		}}
		c := runCandidate(t, api, process, &fakeProvisioner{})
		require.True(t, c.ctrl.HasRun())
		process.mu.Lock()
		lost = true
		process.mu.Unlock()
		require.ErrorIs(t, <-c.done, provision.ErrLeaseLost)
	})
}

// A client that is throttled by its own work must still renew the lease in time.
func TestTheLeaseIsNotThrottled(t *testing.T) {
	created := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			created <- r.URL.Path
		}
		http.Error(rw, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`, 404)
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, QPS: 0.001, Burst: 1})
	require.NoError(t, err)
	_, err = client.CoreV1().Nodes().Get(t.Context(), "x", metav1.GetOptions{}) // uses up what may burst
	require.Error(t, err)
	c, err := provision.New(client, driverName, &fakeProvisioner{}, provision.LeaderElectionNamespace("ns"))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- c.RunContext(ctx) }()
	select {
	case path := <-created:
		require.Equal(t, "/apis/coordination.k8s.io/v1/namespaces/ns/leases", path)
	case <-time.After(time.Minute):
		t.Error("no lease was asked for")
	}
	stop()
	require.NoError(t, <-done)
}
