package kubelet

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/cm"
)

func TestResourceConfigurationIsChecked(t *testing.T) {
	for want, in := range map[string]*kubeletconfig.KubeletConfiguration{
		"want cgroupfs or systemd":                  {CgroupDriver: "docker"},
		"memorySwap.swapBehavior":                   {MemorySwap: kubeletconfig.MemorySwapConfiguration{SwapBehavior: "Unlimited"}},
		`"all" is not one of none, pods`:            {EnforceNodeAllocatable: []string{"all"}},
		"excludes all other values":                 {EnforceNodeAllocatable: []string{"pods", "none"}},
		"listed twice":                              {EnforceNodeAllocatable: []string{"pods", "pods"}},
		"needs systemReservedCgroup":                {EnforceNodeAllocatable: []string{"system-reserved"}},
		"needs kubeReservedCgroup":                  {EnforceNodeAllocatable: []string{"kube-reserved-compressible"}},
		"kube-reserved-compressible exclude each o": {EnforceNodeAllocatable: []string{"kube-reserved", "kube-reserved-compressible"}},
	} {
		_, err := NewMainKubelet(in, nil, true)
		require.ErrorContains(t, err, want)
	}
	config, err := convertConfiguration(&kubeletconfig.KubeletConfiguration{
		MemorySwap: kubeletconfig.MemorySwapConfiguration{SwapBehavior: "LimitedSwap"}, SingleProcessOOMKill: ptr.To(true),
		EnforceNodeAllocatable: []string{"pods", "system-reserved"}, SystemReservedCgroup: "/system", CgroupDriver: "systemd",
		FailSwapOn: ptr.To(true), FailCgroupV1: ptr.To(true),
	}, os.Hostname)
	require.NoError(t, err)
	require.Equal(t, cm.LimitedSwap, config.Cgroups.SwapBehavior)
	require.True(t, *config.Cgroups.SingleProcessOOMKill)
	require.Equal(t, "/system", config.Cgroups.Enforcement.SystemReservedCgroup)
	require.Equal(t, cm.DriverSystemd, config.Cgroups.Driver)
	require.True(t, config.Cgroups.FailSwapOn && config.Cgroups.FailV1)
}
