package report

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAxis(t *testing.T) {
	for name, c := range map[string]struct {
		values, marks []float64
		of, at        float64 // a value, and its place on an axis from 0 to 100
	}{
		"even":        {[]float64{3, 87}, []float64{0, 20, 40, 60, 80, 100}, 50, 50},
		"with 0":      {[]float64{0, 0.02, 3.4}, []float64{0, 1, 2, 3, 4}, 0, 0},
		"logarithmic": {[]float64{2, 900}, []float64{1, 10, 100, 1000}, 10, 100.0 / 3},
		"only 0":      {[]float64{0}, []float64{0, 1}, 0, 0},
		"nothing":     {nil, []float64{0, 1}, 1, 100},
		"one value":   {[]float64{100}, []float64{0, 20, 40, 60, 80, 100}, 100, 100},
	} {
		t.Run(name, func(t *testing.T) {
			a := axis{from: 0, to: 100}
			for _, value := range c.values {
				a.include(value)
			}
			require.InDeltaSlice(t, c.marks, a.marks(), 1e-9)
			require.InDelta(t, c.at, a.at(c.of), 1e-9)
		})
	}
}
