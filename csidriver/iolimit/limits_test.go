package iolimit_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/csidriver/iolimit"
)

func TestParse(t *testing.T) {
	for name, test := range map[string]struct {
		parameters map[string]string
		want       iolimit.Limits
		text       string
	}{
		"both":      {map[string]string{"iops": "500", "throughput": "10Mi"}, iolimit.Limits{IOPS: 500, Throughput: 10 << 20}, "iops=500 throughput=10Mi"},
		"one":       {map[string]string{"iops": "1"}, iolimit.Limits{IOPS: 1}, "iops=1"},
		"unlimited": {map[string]string{"iops": "max", "throughput": "max"}, iolimit.Limits{}, "no limits"},
		"decimal":   {map[string]string{"throughput": "1M"}, iolimit.Limits{Throughput: 1e6}, "throughput=1000000"},
	} {
		t.Run(name, func(t *testing.T) {
			limits, err := iolimit.Parse(test.parameters)
			require.NoError(t, err)
			require.Equal(t, test.want, limits)
			require.Equal(t, test.text, limits.String())
		})
	}
	for key, values := range map[string][]string{
		"iops": {"", "0", "-1", "1.5", "many", "10k"}, "throughput": {"", "0", "-1Mi", "fast"}, "colour": {"blue"},
	} {
		for _, value := range values {
			_, err := iolimit.Parse(map[string]string{key: value})
			require.ErrorContains(t, err, key, value)
		}
	}
}
