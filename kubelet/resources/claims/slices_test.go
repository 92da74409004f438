package claims_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/kubelet/pluginmanager"
)

// slicesFixture is a Manager that runs, by a clock that the test moves. deleted are the selectors of the ResourceSlices that it has deleted.
type slicesFixture struct {
	*fixture
	clock   *clocktesting.FakeClock
	deleted chan string
	// fail has the error of the next request, if any.
	fail chan error
}

func newSlicesFixture(t *testing.T) *slicesFixture {
	f := &slicesFixture{
		fixture: newFixture(t), clock: clocktesting.NewFakeClock(time.Now()), deleted: make(chan string, 100), fail: make(chan error, 1),
	}
	f.client.PrependReactor("delete-collection", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		select {
		case err := <-f.fail:
			return true, nil, err
		default:
			f.deleted <- action.(clienttesting.DeleteCollectionAction).GetListRestrictions().Fields.String()
			return true, nil, nil
		}
	})
	f.fixture.clock = f.clock
	f.restart()
	f.start()
	f.waitTimers(1)
	return f
}

// waitTimers waits until so many timers run.
func (f *slicesFixture) waitTimers(n int) {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return f.clock.Waiters() == n }, testTimeout, tick, "not %d timers", n)
}

// step moves the clock when as many timers run.
func (f *slicesFixture) step(timers int, by time.Duration) {
	f.t.Helper()
	f.waitTimers(timers)
	f.clock.Step(by)
}

func (f *slicesFixture) waitDeleted(selector string) {
	f.t.Helper()
	select {
	case got := <-f.deleted:
		require.Equal(f.t, selector, got)
	case <-time.After(testTimeout):
		f.t.Fatal("no ResourceSlices were deleted")
	}
}

func TestSlicesOfDriversThatEndedWithoutAKubelet(t *testing.T) {
	f := newSlicesFixture(t)
	require.NoError(t, f.Register(t.Context(), f.plugin()))
	f.fail <- errors.New("not now")
	f.step(1, 30*time.Second) // the driver responds
	f.step(1, time.Second)
	f.waitDeleted("spec.driver!=" + driverName + ",spec.nodeName=node")
	f.step(0, time.Hour)
	require.Empty(t, f.deleted)
}

func TestSlicesOfADriverThatEndsWhileItIsRegistered(t *testing.T) {
	f := newSlicesFixture(t)
	require.NoError(t, f.Register(t.Context(), f.plugin()))
	f.step(1, 30*time.Second) // the driver responds
	f.waitDeleted("spec.driver!=" + driverName + ",spec.nodeName=node")
	f.report() // its health is watched
	f.stopDriver()
	f.step(2, 20*time.Second) // the other timer is that of the health of its devices
	f.serveDriver()
	f.report()
	f.step(0, time.Minute)
	require.Empty(t, f.deleted, "the driver has come back in time")

	f.stopDriver()
	f.step(2, 30*time.Second)
	f.waitDeleted("spec.driver=" + driverName + ",spec.nodeName=node")
	f.step(0, time.Hour)
	require.Empty(t, f.deleted, "once is enough")
	require.NoError(t, f.Deregister(t.Context(), f.plugin()))
	f.step(1, 30*time.Second)
	f.waitDeleted("spec.driver=" + driverName + ",spec.nodeName=node")
}

func TestSlicesOfADriverThatHasNeverResponded(t *testing.T) {
	f := newSlicesFixture(t)
	f.stopDriver()
	require.NoError(t, f.Register(t.Context(), f.plugin()))
	f.step(2, 30*time.Second)
	got := []string{<-f.deleted, <-f.deleted}
	require.ElementsMatch(t, []string{"spec.driver!=" + driverName + ",spec.nodeName=node", "spec.driver=" + driverName + ",spec.nodeName=node"}, got)
}

func TestNoSlicesAreDeletedWithoutAnAPIServer(t *testing.T) {
	f := newFixture(t)
	clock := clocktesting.NewFakeClock(time.Now())
	f.clock, f.noAPIServer = clock, true
	f.restart()
	f.start()
	require.NoError(t, f.Register(t.Context(), f.plugin()))
	f.report()                                                                         // its health is watched
	require.NoError(t, f.Deregister(t.Context(), pluginmanager.Plugin{Name: "other"})) // after Start has begun what it has to
	require.Zero(t, clock.Waiters(), "no ResourceSlices of drivers that ended earlier")
	f.stopDriver()
	require.Eventually(t, clock.HasWaiters, testTimeout, tick)
	require.Equal(t, 1, clock.Waiters(), "the only timer is that of the health of its devices")
}
