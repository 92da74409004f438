package health_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/provision/health"
)

// driver reports what the test sets.
type driver struct {
	mu    sync.Mutex
	found map[string][]health.Problem
	err   error
	calls int
	asked []string
}

func (d *driver) VolumeHealth(_ context.Context, handles func() []string) (map[string][]health.Problem, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	d.asked = handles()
	return d.found, d.err
}

// set changes what the driver reports from now on.
func (d *driver) set(found map[string][]health.Problem, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.found, d.err = found, err
}

// called returns how often the driver was called, and for which volumes the last time.
func (d *driver) called() (calls int, asked []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls, d.asked
}

// TestHealthOfVolumes reports a volume that is degraded once, what changes, and its recovery.
func TestHealthOfVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		volume := func(name, driver string) *corev1.PersistentVolume {
			pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
			pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "claim-" + name}
			pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "handle-" + name}
			return pv
		}
		d := &driver{err: errors.ErrUnsupported}
		events := record.NewFakeRecorder(100)
		monitor, err := health.New(health.Deps{
			Client: fake.NewClientset(volume("a", "disk"), volume("b", "disk"), volume("c", "other")), Driver: d, Recorder: events,
		}, health.Config{DriverName: "disk", Period: time.Minute})
		require.NoError(t, err)
		require.Error(t, monitor.Ready())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- monitor.Start(ctx) }()
		defer func() { cancel(); require.NoError(t, <-done) }()
		time.Sleep(time.Hour)
		synctest.Wait()
		calls, _ := d.called()
		require.Equal(t, 1, calls, "a driver that reports no health is left alone")
		require.ErrorContains(t, monitor.Start(ctx), "was started before")
		require.NoError(t, monitor.Ready())

		d.set(map[string][]health.Problem{
			"handle-a": {{Status: "DEGRADED", Reason: "PathLost", Message: "1 of 2 paths works"}}, "handle-z": {{}},
		}, nil)
		monitor.RetryNow()
		synctest.Wait()
		_, asked := d.called()
		require.Equal(t, []string{"handle-a", "handle-b"}, asked)
		require.Equal(t, "Warning VolumeConditionAbnormal Volume a: PathLost (degraded): 1 of 2 paths works", <-events.Events)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		calls, _ = d.called()
		require.Equal(t, 7, calls)
		require.Empty(t, events.Events, "nothing has changed")

		d.set(map[string][]health.Problem{"handle-a": {{Status: "DATA_LOSS", Reason: "DiskFailed"}}, "handle-z": {{}}}, nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, "Warning VolumeConditionAbnormal Volume a: DiskFailed (data_loss)", <-events.Events)
		d.set(nil, nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, "Normal VolumeConditionNormal Volume a is normal again", <-events.Events)
	})
}
