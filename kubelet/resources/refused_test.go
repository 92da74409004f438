package resources_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/kubelet/lifecycle"
)

// TestPodsThatTheNodeIsTooSmallForAreCounted: the first has more than there is, the second could have what it requests, and gets nothing.
func TestPodsThatTheNodeIsTooSmallForAreCounted(t *testing.T) {
	m := newPlacing(t, t.TempDir())
	counts := func() (requests, errors, admissions float64) {
		all := m.Metrics()
		return testutil.ToFloat64(all.CPURequests), testutil.ToFloat64(all.CPUErrors), testutil.ToFloat64(all.TopologyRequests)
	}
	m.CountRefused(podWithCPUs("large", "9"))
	requests, errors, admissions := counts()
	require.Equal(t, []float64{1, 1, 1}, []float64{requests, errors, admissions})
	m.CountRefused(podWithCPUs("small", "3"))
	requests, errors, admissions = counts()
	require.Equal(t, []float64{2, 1, 2}, []float64{requests, errors, admissions})
	require.False(t, m.HasExclusiveCPUs("small"))
	require.True(t, m.Admit(&lifecycle.PodAdmitAttributes{Pod: podWithCPUs("other", "3")}).Admit)
}
