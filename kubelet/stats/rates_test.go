package stats

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRatesAreTakenOverTheWindow(t *testing.T) {
	var r cpuRates
	began := time.Unix(1800000000, 0)
	// observe returns the cores used, in percent, -1 if that is unknown.
	observe := func(seconds float64, used float64) int {
		rate := r.observe("k", cpuReading{at: began.Add(time.Duration(seconds * 1e9)), nanos: uint64(used * 1e9)})
		if rate == nil {
			return -1
		}
		return int(*rate / 1e7)
	}
	require.Equal(t, -1, observe(0, 5), "one reading gives no rate")
	require.Equal(t, 50, observe(2, 6), "the first rates are of what there is")
	require.Equal(t, 20, observe(10, 7))
	require.Equal(t, 18, observe(11, 7), "it has slept for the last second only")
	require.Equal(t, 10, observe(20, 8), "of the last ten seconds")
	require.Equal(t, 10, observe(20, 8), "the same reading again has the same rate")
	require.Equal(t, -1, observe(21, 1), "a container that was started again")
	require.Equal(t, 100, observe(22, 2))

	r.observe("gone", cpuReading{at: began, nanos: 1})
	r.keepOnly(map[string]bool{"k": true})
	require.Len(t, r.last, 1)
	require.Equal(t, 100, observe(23, 3))
}
