package leader_test

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/controller/leader"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func elector(t *testing.T, client *fake.Clientset, identity string) *leader.Elector {
	t.Helper()
	e, err := leader.New(leader.Deps{Client: client.CoordinationV1()},
		leader.Config{Namespace: "ns", Name: "lease", Identity: identity})
	require.NoError(t, err)
	return e
}

func TestOneLeadsUntilItStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var log []string
		lead := func(ctx context.Context, identity string) chan error {
			done := make(chan error, 1)
			go func() {
				done <- elector(t, client, identity).Run(ctx, func(ctx context.Context) error {
					log = append(log, identity+" leads")
					<-ctx.Done()
					time.Sleep(time.Minute) // takes a while to end, far longer than the lease
					log = append(log, identity+" ended")
					return io.EOF
				})
			}()
			synctest.Wait()
			return done
		}
		first, stopFirst := context.WithCancel(t.Context())
		firstDone := lead(first, "first")
		second, stopSecond := context.WithCancel(t.Context())
		secondDone := lead(second, "second")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.Equal(t, []string{"first leads"}, log)
		stopFirst()
		require.ErrorIs(t, <-firstDone, io.EOF)
		time.Sleep(10 * time.Second) // the lease was given up: no need to wait until it is over
		synctest.Wait()
		require.Equal(t, []string{"first leads", "first ended", "second leads"}, log)
		stopSecond()
		require.ErrorIs(t, <-secondDone, io.EOF)
	})
}

func TestLosingTheLeaseEndsTheWorkWithAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var broken atomic.Bool
		client.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return broken.Load(), nil, apierrors.NewInternalError(errors.New("no answer"))
		})
		done := make(chan error, 1)
		var led time.Duration
		go func() {
			done <- elector(t, client, "me").Run(t.Context(), func(ctx context.Context) error {
				began := time.Now()
				<-ctx.Done()
				led = time.Since(began)
				return nil
			})
		}()
		time.Sleep(time.Minute)
		broken.Store(true)
		require.ErrorIs(t, <-done, leader.ErrLost)
		require.Less(t, led, time.Minute+15*time.Second, "it must end before another can lead")
	})
}

// TestLostLeaseIsKeptUntilTheWorkHasEnded has an API server that recovers just when the leader has given up.
func TestLostLeaseIsKeptUntilTheWorkHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		holder := func() string {
			lease, err := client.CoordinationV1().Leases("ns").Get(t.Context(), "lease", metav1.GetOptions{})
			require.NoError(t, err)
			return ptr.Deref(lease.Spec.HolderIdentity, "")
		}
		var broken atomic.Bool
		client.PrependReactor("update", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
			lease := action.(clienttesting.UpdateAction).GetObject().(*coordinationv1.Lease)
			isRenewal := ptr.Deref(lease.Spec.HolderIdentity, "") != ""
			return isRenewal && broken.Load(), nil, apierrors.NewInternalError(errors.New("no answer"))
		})
		done := make(chan error, 1)
		go func() {
			done <- elector(t, client, "me").Run(t.Context(), func(ctx context.Context) error {
				<-ctx.Done()
				time.Sleep(3 * time.Second) // takes a while to end
				require.Equal(t, "me", holder(), "no other may lead before the work has ended")
				return nil
			})
		}()
		time.Sleep(time.Minute)
		broken.Store(true)
		require.ErrorIs(t, <-done, leader.ErrLost)
		require.Empty(t, holder(), "another can lead at once")
	})
}

func TestEndOfTheWorkEndsTheTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		for range 2 {
			err := elector(t, client, "me").Run(t.Context(), func(context.Context) error { return io.EOF })
			require.ErrorIs(t, err, io.EOF)
		}
	})
}

func TestStoppedWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		client.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewInternalError(errors.New("no answer"))
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, elector(t, client, "me").Run(ctx, func(context.Context) error { return io.EOF }))
	})
}

func TestNewRefusesBadConfig(t *testing.T) {
	client := fake.NewClientset().CoordinationV1()
	_, err := leader.New(leader.Deps{}, leader.Config{})
	require.ErrorContains(t, err, "Client")
	good := leader.Config{Namespace: "ns", Name: "lease", Identity: "me"}
	for field, edit := range map[string]func(*leader.Config){
		"Namespace":     func(c *leader.Config) { c.Namespace = "" },
		"Name":          func(c *leader.Config) { c.Name = "" },
		"Identity":      func(c *leader.Config) { c.Identity = "" },
		"renewDeadline": func(c *leader.Config) { c.RenewDeadline = time.Hour },
	} {
		bad := good
		edit(&bad)
		_, err := leader.New(leader.Deps{Client: client}, bad)
		require.ErrorContains(t, err, field)
	}
}

func TestNewClientHasItsOwnLimits(t *testing.T) {
	config := &rest.Config{Host: "https://127.0.0.1:1", QPS: 1, Burst: 1}
	client, err := leader.NewClient(config)
	require.NoError(t, err)
	require.NotNil(t, client)
	require.Equal(t, float32(1), config.QPS, "the caller's configuration is not touched")
}
