package iolimit

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzParse parses arbitrary parameters of a StorageClass or a VolumeAttributesClass: what is accepted can be written to the kernel.
func FuzzParse(f *testing.F) {
	f.Add("100", "50Mi", "")
	f.Add(Unlimited, Unlimited, "")
	f.Add("-1", "1e-99999999", "other")
	f.Fuzz(func(t *testing.T, iops, throughput, other string) {
		parameters := map[string]string{ParameterIOPS: iops, ParameterThroughput: throughput}
		if other != "" {
			parameters[other] = iops
		}
		limits, err := Parse(parameters)
		if err != nil {
			require.Zero(t, limits)
			return
		}
		require.Equal(t, parameters[ParameterIOPS] == Unlimited, limits.IOPS == 0)
		require.Equal(t, parameters[ParameterThroughput] == Unlimited, limits.Throughput == 0)
		require.GreaterOrEqual(t, limits.IOPS, int64(0))
		require.GreaterOrEqual(t, limits.Throughput, int64(0))
		require.Len(t, parameters, 2)
	})
}
