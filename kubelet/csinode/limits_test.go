package csinode_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/kubelet/pluginmanager"
	"github.com/berth-dev/berth/volume/csi/fake"
)

// limit is what the CSINode says how many volumes of the only driver the node can have.
func (w *world) limit() int32 {
	w.t.Helper()
	drivers := w.csiNode().Spec.Drivers
	require.Len(w.t, drivers, 1)
	return *drivers[0].Allocatable.Count
}

func TestLimitsAreAskedForAgain(t *testing.T) {
	w := newWorld(t)
	w.period.Store(int64(10 * time.Second))
	driver := fake.New(fake.Config{Name: "one", NodeID: "id", Dir: t.TempDir(), MaxVolumes: 5})
	require.NoError(t, driver.Serve(""))
	t.Cleanup(driver.Stop)
	w.drivers.Subscribe(w.PeriodsChanged)
	w.start()
	w.AskLimit("unknown")
	require.NoError(t, w.Register(t.Context(), pluginmanager.Plugin{
		Type: "CSIPlugin", Name: "one", Endpoint: driver.Endpoint(), Versions: []string{"1.0.0"}}))
	require.EqualValues(t, 5, w.limit())

	driver.SetMaxVolumes(4)
	require.Eventually(t, func() bool { // a timer that is replaced may miss one step of the clock
		if w.clock.HasWaiters() {
			w.clock.Step(10 * time.Second)
		}
		return w.limit() == 4
	}, soon, time.Millisecond, "the period is over")
	w.period.Store(int64(time.Hour))
	w.PeriodsChanged()

	driver.SetMaxVolumes(3)
	w.AskLimit("one")
	require.Eventually(t, func() bool { return w.limit() == 3 }, soon, time.Millisecond, "the clock stands still: it was asked for")

	w.period.Store(0)
	w.PeriodsChanged()
	require.Eventually(t, func() bool { return !w.clock.HasWaiters() }, soon, time.Millisecond, "no driver wants it, and no timer runs")
}
