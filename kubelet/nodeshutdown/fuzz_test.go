package nodeshutdown

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// FuzzTimes reads an arbitrary file of the times of a shutdown: an error names the file, and what is accepted is shown, and the same when it is
// written and read again.
func FuzzTimes(f *testing.F) {
	f.Add([]byte(`{"startTime":"2026-01-02T03:04:05.5Z","endTime":"0001-01-01T00:00:00Z"}`))
	f.Add([]byte(`{"startTime":"9999-01-02T03:04:05+23:00","endTime":"1500-01-01T00:00:00Z"}`))
	f.Add([]byte("null"))
	f.Add([]byte(`{"startTime":1`))
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), stateFile)
		require.NoError(t, os.WriteFile(path, content, 0o600))
		read, err := newTimes(path, nil)
		require.NoError(t, err)
		if err := read.load(); err != nil {
			require.ErrorContains(t, err, path)
			return
		}
		start, end := testutil.ToFloat64(read.start), testutil.ToFloat64(read.end)
		const lastYear = 10000 * 366 * 24 * 3600
		for _, at := range []float64{start, end} {
			require.Less(t, at, float64(lastYear))
			require.Greater(t, at, float64(-lastYear))
		}
		second := func(at float64) time.Time {
			if at == 0 {
				return time.Time{}
			}
			return time.Unix(int64(at), 0).UTC()
		}
		if read.store(second(start), second(end)) != nil {
			return // a time that the zone moves into another millennium
		}
		again, err := newTimes(path, nil)
		require.NoError(t, err)
		require.NoError(t, again.load())
		require.InDelta(t, start, testutil.ToFloat64(again.start), 1)
		require.InDelta(t, end, testutil.ToFloat64(again.end), 1)
	})
}

// FuzzPeriods groups Pods of arbitrary priorities: each is in one group, whose priority is not above its own unless it is the first one.
func FuzzPeriods(f *testing.F) {
	f.Add(int32(0), int32(systemCritical), int32(5), int32(-3), int64(time.Second))
	f.Add(int32(7), int32(7), int32(7), int32(-1<<31), int64(0))
	f.Fuzz(func(t *testing.T, first, second, one, other int32, grace int64) {
		pods := []*corev1.Pod{{Spec: corev1.PodSpec{Priority: &one}}, {Spec: corev1.PodSpec{Priority: &other}}, {}}
		lowest, count := min(first, second), 0
		for _, g := range groupPods([]Period{{first, time.Duration(grace)}, {second, time.Duration(grace)}}, pods) {
			require.NotEmpty(t, g.pods)
			count += len(g.pods)
			for _, pod := range g.pods {
				if g.Priority != lowest && pod.Spec.Priority != nil {
					require.LessOrEqual(t, g.Priority, *pod.Spec.Priority)
				}
			}
		}
		require.Equal(t, len(pods), count)
	})
}
