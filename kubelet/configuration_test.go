package kubelet

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/cm"
)

func TestResourceConfigurationIsChecked(t *testing.T) {
	for want, in := range map[string]*kubeletconfig.KubeletConfiguration{
		"want 1ms to 1s": {CPUCFSQuotaPeriod: &metav1.Duration{Duration: 2 * time.Second}},
		"cpuCFSQuotaPeriod (--cpu-cfs-quota-period) \"0s\"": {CPUCFSQuotaPeriod: &metav1.Duration{}},
		"want cgroupfs or systemd":                          {CgroupDriver: "docker"},
		"memorySwap.swapBehavior":                           {MemorySwap: kubeletconfig.MemorySwapConfiguration{SwapBehavior: "Unlimited"}},
		`"all" is not one of none, pods`:                    {EnforceNodeAllocatable: []string{"all"}},
		"excludes all other values":                         {EnforceNodeAllocatable: []string{"pods", "none"}},
		"listed twice":                                      {EnforceNodeAllocatable: []string{"pods", "pods"}},
		"needs systemReservedCgroup":                        {EnforceNodeAllocatable: []string{"system-reserved"}},
		"needs kubeReservedCgroup":                          {EnforceNodeAllocatable: []string{"kube-reserved-compressible"}},
		"kube-reserved-compressible exclude each o":         {EnforceNodeAllocatable: []string{"kube-reserved", "kube-reserved-compressible"}},
	} {
		_, err := NewMainKubelet(in, nil, true)
		require.ErrorContains(t, err, want)
	}
	chosen, err := convertConfiguration(&kubeletconfig.KubeletConfiguration{
		MemorySwap: kubeletconfig.MemorySwapConfiguration{SwapBehavior: "LimitedSwap"}, SingleProcessOOMKill: ptr.To(true),
		EnforceNodeAllocatable: []string{"pods", "system-reserved"}, SystemReservedCgroup: "/system", CgroupDriver: "systemd",
		FailSwapOn: ptr.To(true), FailCgroupV1: ptr.To(true), SeccompDefault: ptr.To(true),
		CPUCFSQuota: ptr.To(false), CPUCFSQuotaPeriod: &metav1.Duration{Duration: 50 * time.Millisecond},
	}, os.Hostname)
	require.NoError(t, err)
	config := chosen.Agent
	require.Equal(t, cm.LimitedSwap, config.Cgroups.SwapBehavior)
	require.True(t, *config.Cgroups.SingleProcessOOMKill)
	require.Equal(t, "/system", config.Cgroups.Enforcement.SystemReservedCgroup)
	require.Equal(t, cm.DriverSystemd, config.Cgroups.Driver)
	require.True(t, config.Cgroups.FailSwapOn && config.Cgroups.FailV1)
	require.True(t, config.Pods.SeccompDefault)
	require.True(t, config.Cgroups.NoCPUQuota)
	require.Equal(t, 50*time.Millisecond, config.Cgroups.CPUQuotaPeriod)

	chosen, err = convertConfiguration(&kubeletconfig.KubeletConfiguration{}, os.Hostname)
	require.NoError(t, err)
	config = chosen.Agent
	require.False(t, config.Pods.SeccompDefault || config.Cgroups.NoCPUQuota)
	require.True(t, config.Cgroups.FailV1 && config.Cgroups.FailSwapOn, "the defaults of Kubernetes")
	require.Equal(t, 100*time.Millisecond, config.Cgroups.CPUQuotaPeriod)
}
