package runtimehelper

import (
	"testing"

	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/resources"
)

func TestQuotaOfExclusiveCPUs(t *testing.T) {
	for name, c := range map[string]struct {
		config    Config
		exclusive bool
		want      int64
	}{
		"shared":               {Config{}, false, 50_000},
		"exclusive":            {Config{}, true, -1},
		"exclusive with quota": {Config{ExclusiveCPUQuota: true}, true, 50_000},
	} {
		t.Run(name, func(t *testing.T) {
			h := &Helper{config: c.config}
			out := &runtimeapi.LinuxContainerResources{CpuQuota: 50_000}
			h.set(resources.Pin{CPUs: "1", Memory: "0", Exclusive: c.exclusive}, out)
			require.Equal(t, c.want, out.CpuQuota)
			require.Equal(t, "1", out.CpusetCpus)
			require.Equal(t, "0", out.CpusetMems)
		})
	}
}
