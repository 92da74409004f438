package eviction

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// FuzzThresholds reads arbitrary settings of eviction: an error names the field and the signal, and what is accepted is the same when it is
// written and read again.
func FuzzThresholds(f *testing.F) {
	f.Add("memory.available", "100Mi", "1m30s", "5%", int64(1<<34))
	f.Add("nodefs.available", "0.0000001%", "0s", "0", int64(100))
	f.Add("imagefs.inodesFree", "1e-999999999", "-1s", "1e999999999", int64(0))
	f.Add("pid.available", "NaN%", "1", "-1%", int64(1))
	f.Add("x", "0x1p-2%", "", "100%", int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, signal, amount, grace, reclaim string, capacity int64) {
		began := time.Now()
		one := func(text string) map[string]string { return map[string]string{signal: text} }
		config := Config{Hard: one(amount), Soft: one(amount), SoftGracePeriod: one(grace), MinimumReclaim: one(reclaim)}
		thresholds, err := ParseThresholds(config)
		require.Less(t, time.Since(began), 10*time.Second)
		if err != nil {
			require.ErrorContains(t, err, " "+signal+"=")
			require.ErrorContains(t, err, "eviction")
			return
		}
		require.Contains(t, []int{0, 2}, len(thresholds))
		for _, threshold := range thresholds {
			require.GreaterOrEqual(t, threshold.Grace, time.Duration(0))
			for _, value := range []Value{threshold.Value, threshold.MinReclaim} {
				again, err := parseValue(value.String())
				require.NoError(t, err, value.String())
				require.InDelta(t, value.Fraction, again.Fraction, 1e-9)
				require.Zero(t, value.Amount.Cmp(again.Amount), value.String())
				require.GreaterOrEqual(t, value.of(max(capacity, 0)), int64(0))
				if value.Fraction > 0 {
					require.LessOrEqual(t, value.of(max(capacity, 0)), max(capacity, 0))
				}
			}
		}
		for _, reserved := range Reserved(thresholds, corev1.ResourceList{
			corev1.ResourceMemory: *resource.NewQuantity(max(capacity, 0), resource.BinarySI),
		}) {
			require.GreaterOrEqual(t, reserved.Sign(), 0)
		}
	})
}
