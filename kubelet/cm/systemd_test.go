package cm

import (
	"testing"

	"github.com/opencontainers/cgroups/systemd"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// TestSlices checks what systemd is asked for: the names, which contain the path from the root, and the limits of each
// cgroup version.
func TestSlices(t *testing.T) {
	pod := podOf("12-ab", corev1.ResourceRequirements{Requests: amounts("cpu", "1"), Limits: amounts("cpu", "1500m", "memory", "64Mi")})
	limits := PodLimits(pod, 50, ResourceOptions{})
	for name, c := range map[string]struct {
		group         cgroupName
		parent, slice string
	}{
		"the root of all Pods": {parseCgroupName("/").child("kubepods"), "-.slice", "kubepods.slice"},
		"a Pod": {parseCgroupName("/").child("kubepods", "burstable", "pod12-ab"), "kubepods-burstable.slice",
			"kubepods-burstable-pod12_ab.slice"},
		"below a group of its own": {parseCgroupName("/berth-1").child("kubepods"), "berth_1.slice", "berth_1-kubepods.slice"},
	} {
		t.Run(name, func(t *testing.T) {
			got := sliceConfig(c.group, limits.resources(true))
			require.True(t, got.Systemd)
			require.Equal(t, c.slice, got.Name)
			require.Equal(t, c.parent, got.Parent)
		})
	}
	for _, unified := range []bool{false, true} {
		got := limits.resources(unified)
		require.EqualValues(t, 64<<20, got.Memory)
		require.EqualValues(t, 150000, got.CpuQuota)
		require.EqualValues(t, 100000, got.CpuPeriod)
		require.True(t, got.SkipDevices, "devices are the runtime's")
		if unified {
			require.EqualValues(t, 39, got.CpuWeight, "1024 shares")
		} else {
			require.EqualValues(t, 1024, got.CpuShares)
		}
	}
	if systemd.IsRunningSystemd() {
		return
	}
	require.ErrorContains(t, ensureSlice(parseCgroupName("/").child("kubepods"), limits, true), "kubepods.slice")
}
