package housekeeping

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet/cri/fake"
	"github.com/berth-dev/berth/kubelet/status"
)

// orphanedPod is all that is left of one Pod. Its volumes are busy for some attempts to remove them.
type orphanedPod struct{ attempts, busy atomic.Int32 }

func (p *orphanedPod) CleanupOrphans(_ context.Context, keep func(types.UID) bool) error {
	p.attempts.Add(1)
	if keep("orphan") || p.busy.Add(-1) < 0 {
		return nil
	}
	return errors.New("device or resource busy")
}
func (*orphanedPod) Pods() ([]types.UID, error)                 { return nil, nil }
func (*orphanedPod) RemovePod(context.Context, types.UID) error { return nil }
func (*orphanedPod) Retain(func(types.UID) bool)                {}

type noWorkers struct{}

func (noWorkers) Pods() []*corev1.Pod { return nil }
func (noWorkers) Has(types.UID) bool  { return false }

// newManager returns a Manager of one orphaned Pod.
func newManager(t *testing.T, pod *orphanedPod, ready <-chan struct{}, config Config) *Manager {
	t.Helper()
	config.NodeName, config.PodLogsDir = "n", t.TempDir()
	m, err := New(Deps{
		Runtime: fake.New(clock.RealClock{}), Workers: noWorkers{}, PodEvents: &status.Broadcaster{}, Volumes: pod, Cgroups: pod, Allocations: pod,
		Ready: []<-chan struct{}{ready}, Recorder: &record.FakeRecorder{}, Clock: clock.RealClock{},
		Logger: slog.New(slog.DiscardHandler),
	}, config)
	require.NoError(t, err)
	return m
}

// TestFailedCleanupIsRetried has volumes that are busy at first. The cleanup is tried again, ever more rarely, and never
// after it has succeeded, unless CleanupOrphans fails.
func TestFailedCleanupIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod, ready := &orphanedPod{}, make(chan struct{})
		m := newManager(t, pod, ready, Config{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { m.runOrphanCleanup(ctx); close(done) }()
		attempts := func(after time.Duration) int32 {
			time.Sleep(after)
			synctest.Wait()
			return pod.attempts.Load()
		}
		pod.busy.Store(3)
		require.NoError(t, m.CleanupOrphans(ctx))
		require.Zero(t, attempts(time.Hour), "nothing is known of the Pods yet")
		close(ready)
		require.EqualValues(t, 1, attempts(0))
		require.EqualValues(t, 2, attempts(time.Second))
		require.EqualValues(t, 2, attempts(time.Second))
		require.EqualValues(t, 3, attempts(time.Second))
		require.EqualValues(t, 4, attempts(4*time.Second))
		require.EqualValues(t, 4, attempts(24*time.Hour), "it has succeeded")

		pod.busy.Store(1)
		require.ErrorContains(t, m.CleanupOrphans(ctx), "busy")
		require.EqualValues(t, 5, attempts(0))
		require.EqualValues(t, 6, attempts(time.Second))
		require.EqualValues(t, 6, attempts(24*time.Hour))

		pod.busy.Store(1000)
		require.ErrorContains(t, m.CleanupOrphans(ctx), "busy")
		before := attempts(time.Hour)
		require.EqualValues(t, before+12, attempts(time.Hour), "every 5 minutes")
		cancel()
		<-done
	})
}
