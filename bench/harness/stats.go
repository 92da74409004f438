package harness

import (
	"math"
	"slices"
)

// Summary describes a set of values.
type Summary struct {
	Count            int
	Min, Median, Max float64
}

// Summarize summarizes values, which it leaves as they are. Without values all is NaN.
func Summarize(values []float64) Summary {
	s := Summary{Count: len(values), Min: math.NaN(), Median: math.NaN(), Max: math.NaN()}
	if len(values) > 0 {
		s.Min, s.Median, s.Max = Quantile(values, 0), Quantile(values, 0.5), Quantile(values, 1)
	}
	return s
}

// Quantile is the value below which the part q (0 to 1) of the values lies, by linear interpolation; NaN without
// values.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	at := q * float64(len(sorted)-1)
	low := int(math.Floor(at))
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (sorted[high]-sorted[low])*(at-float64(low))
}

// Verdict compares ours with what target asks.
func (c *CaseData) Verdict(target Target) (ratio float64, met, known bool) {
	if len(c.Variants) == 0 {
		return 0, false, false
	}
	judged := c.Variants[0]
	if target.Of != "" {
		judged = target.Of
	}
	ours := Summarize(c.Values(judged, target.Metric)).Median
	ratio = ours
	if target.Against != "" {
		ratio = ours / Summarize(c.Values(target.Against, target.Metric)).Median
	}
	if math.IsNaN(ratio) || math.IsInf(ratio, 0) {
		return 0, false, false
	}
	for _, m := range c.Metrics {
		if m.Name == target.Metric {
			if m.Better == Higher {
				return ratio, ratio >= target.Ratio, true
			}
			return ratio, ratio <= target.Ratio, true
		}
	}
	return ratio, false, false
}
