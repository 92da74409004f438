package csinode_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/kubelet/pluginmanager"
	"github.com/berth-dev/berth/volume/csi/fake"
)

// limit returns the volume limit of the only driver in the CSINode.
func (f *fixture) limit() int32 {
	f.t.Helper()
	drivers := f.csiNode().Spec.Drivers
	require.Len(f.t, drivers, 1)
	return *drivers[0].Allocatable.Count
}

func TestVolumeLimitsAreRefreshed(t *testing.T) {
	f := newFixture(t)
	f.period.Store(int64(10 * time.Second))
	driver := fake.New(fake.Config{Name: "one", NodeID: "id", Dir: t.TempDir(), MaxVolumes: 5})
	require.NoError(t, driver.Serve(""))
	t.Cleanup(driver.Stop)
	f.drivers.Subscribe(f.RefreshPeriodsChanged)
	f.start()
	f.RefreshAllocatable("unknown")
	require.NoError(t, f.Register(t.Context(), pluginmanager.Plugin{
		Type: "CSIPlugin", Name: "one", Endpoint: driver.Endpoint(), Versions: []string{"1.0.0"}}))
	require.EqualValues(t, 5, f.limit())

	driver.SetMaxVolumes(4)
	require.Eventually(t, func() bool { // a timer that is replaced may miss one step of the clock
		if f.clock.HasWaiters() {
			f.clock.Step(10 * time.Second)
		}
		return f.limit() == 4
	}, testTimeout, time.Millisecond, "the period is over")
	f.period.Store(int64(time.Hour))
	f.RefreshPeriodsChanged()

	driver.SetMaxVolumes(3)
	f.RefreshAllocatable("one")
	require.Eventually(t, func() bool { return f.limit() == 3 }, testTimeout, time.Millisecond, "the clock stands still: it was asked for")

	f.period.Store(0)
	f.RefreshPeriodsChanged()
	require.Eventually(t, func() bool { return !f.clock.HasWaiters() }, testTimeout, time.Millisecond, "no driver wants it, and no timer runs")
}
