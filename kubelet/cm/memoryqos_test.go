package cm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cgroupslib "github.com/opencontainers/cgroups"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

const tiered = kubeletconfig.TieredReservationMemoryReservationPolicy

// TestMemoryQoSOfContainers covers what KEP-2570 sets for a container.
func TestMemoryQoSOfContainers(t *testing.T) {
	burstable := corev1.ResourceRequirements{Requests: amounts("memory", "100Mi"), Limits: amounts("memory", "200Mi")}
	equal := amounts("cpu", "1", "memory", "100Mi")
	for name, c := range map[string]struct {
		resources corev1.ResourceRequirements
		policy    kubeletconfig.MemoryReservationPolicy
		factor    float64
		want      map[string]string
	}{
		"throttled between request and limit": {burstable, "", 0,
			map[string]string{MemoryMin: "0", MemoryLow: "0", MemoryHigh: fmt.Sprint(190 << 20)}},
		"another factor, in whole pages": {burstable, "", 0.5001, map[string]string{MemoryMin: "0", MemoryLow: "0",
			MemoryHigh: fmt.Sprint((150<<20 + 10485) / os.Getpagesize() * os.Getpagesize())}},
		"no limit: that of the node": {corev1.ResourceRequirements{Requests: amounts("memory", "100Mi")}, "", 0.5,
			map[string]string{MemoryMin: "0", MemoryLow: "0", MemoryHigh: fmt.Sprint(550 << 20)}},
		"reserved as long as there is other memory": {burstable, tiered, 0,
			map[string]string{MemoryLow: fmt.Sprint(100 << 20), MemoryHigh: fmt.Sprint(190 << 20)}},
		"reserved in any case": {corev1.ResourceRequirements{Requests: equal, Limits: equal}, tiered, 0,
			map[string]string{MemoryMin: fmt.Sprint(100 << 20)}},
		"nothing requested": {corev1.ResourceRequirements{}, tiered, 0, map[string]string{MemoryMin: "0", MemoryLow: "0"}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podOf("u", c.resources)
			opts := ResourceOptions{
				Unified: true, SingleProcessOOMKill: true, AllocatableMemory: func() int64 { return 1000 << 20 },
				MemoryQoS: &MemoryQoSConfig{ThrottlingFactor: c.factor, ReservationPolicy: c.policy},
			}
			require.Equal(t, c.want, ContainerResources(pod, &pod.Spec.Containers[0], opts).Unified)
			opts.Unified = false
			require.Empty(t, ContainerResources(pod, &pod.Spec.Containers[0], opts).Unified, "cgroup v1")
			opts.Unified, opts.MemoryQoS = true, nil
			require.Empty(t, ContainerResources(pod, &pod.Spec.Containers[0], opts).Unified, "off")
		})
	}
	require.NoError(t, (*MemoryQoSConfig)(nil).Validate())
	require.NoError(t, (&MemoryQoSConfig{ThrottlingFactor: 1, ReservationPolicy: tiered}).Validate())
	require.ErrorContains(t, (&MemoryQoSConfig{ThrottlingFactor: 1.1}).Validate(), "memoryThrottlingFactor 1.1")
	require.ErrorContains(t, (&MemoryQoSConfig{ReservationPolicy: "Some"}).Validate(), `memoryReservationPolicy "Some"`)
}

// TestMemoryQoSOfGroups covers the cgroups of a Pod and of the classes, with plain files in place of cgroup v2.
func TestMemoryQoSOfGroups(t *testing.T) {
	const pods, class, group = "/b/kubepods", "/b/kubepods/burstable", "/b/kubepods/burstable/podu-1"
	h := unifiedHierarchy(t, "b", "b/kubepods", "b/kubepods/burstable", group)
	for _, dir := range []string{pods, class, group} {
		for _, file := range []string{MemoryMin, MemoryLow} {
			require.NoError(t, os.WriteFile(filepath.Join(h.Dir, dir, file), []byte("-"), 0o600))
		}
	}
	expect := func(want map[string]string) {
		t.Helper()
		for file, content := range want {
			got, err := os.ReadFile(filepath.Join(h.Dir, file))
			require.NoError(t, err)
			require.Equal(t, content, strings.TrimSpace(string(got)), file)
		}
	}
	manager := func(policy kubeletconfig.MemoryReservationPolicy) *Manager {
		m, err := New(Deps{}, Config{CgroupRoot: "b", Hierarchies: []Hierarchy{h}, Resources: ResourceOptions{
			Unified: true, MemoryQoS: &MemoryQoSConfig{ReservationPolicy: policy},
		}})
		require.NoError(t, err)
		return m
	}
	pod := podOf("u-1", corev1.ResourceRequirements{Requests: amounts("cpu", "1", "memory", "64Mi")})
	guaranteed := podOf("u-2", corev1.ResourceRequirements{Requests: amounts("cpu", "1", "memory", "1Gi"), Limits: amounts("cpu", "1", "memory", "1Gi")})
	sum := Requests{}.Replace(Requests{}, RequestsOf(pod, true)).Replace(Requests{}, RequestsOf(guaranteed, true))
	require.Equal(t, Requests{BurstableCPU: 1000, BurstableMemory: 64 << 20, GuaranteedMemory: 1 << 30}, sum)
	require.Equal(t, Requests{BurstableCPU: 1000}, RequestsOf(pod, false))
	require.Zero(t, RequestsOf(guaranteed, false))

	_, err := manager(tiered).EnsurePod(t.Context(), pod)
	require.NoError(t, err)
	require.NoError(t, manager(tiered).UpdateClasses(t.Context(), sum))
	expect(map[string]string{
		group + "/memory.low": fmt.Sprint(64 << 20), group + "/memory.min": "-",
		class + "/memory.low": fmt.Sprint(64 << 20), class + "/memory.min": "-", class + "/cpu.weight": "39",
		pods + "/memory.min": fmt.Sprint(1<<30 + 64<<20), pods + "/memory.low": "-",
	})
	require.NoError(t, manager("").UpdateClasses(t.Context(), sum))
	expect(map[string]string{class + "/memory.low": "0", pods + "/memory.min": "0"})
	require.EqualValues(t, 1<<30, *PodLimits(guaranteed, 0, ResourceOptions{
		Unified: true, MemoryQoS: &MemoryQoSConfig{ReservationPolicy: tiered}}).MemoryMin)
}

// TestMemoryQoSOfTheKernel writes and reads the files of cgroup v2 itself.
func TestMemoryQoSOfTheKernel(t *testing.T) {
	if os.Getuid() != 0 || !cgroupslib.IsCgroup2UnifiedMode() {
		t.Skip("needs root and cgroup v2")
	}
	root := fmt.Sprintf("/berth-test-%d", os.Getpid())
	m, err := New(Deps{}, Config{CgroupRoot: root, Resources: ResourceOptions{Unified: true, MemoryQoS: &MemoryQoSConfig{ReservationPolicy: tiered}}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.RemoveRoot(context.WithoutCancel(t.Context()))) })
	require.NoError(t, m.EnsureRoot(t.Context()))
	pod := podOf("u-1", corev1.ResourceRequirements{})
	pod.Spec.Resources = &corev1.ResourceRequirements{
		Requests: amounts("cpu", "1", "memory", "64Mi"), Limits: amounts("cpu", "2", "memory", "128Mi"),
	}
	parent, err := m.EnsurePod(t.Context(), pod)
	require.NoError(t, err)
	require.NoError(t, m.UpdateClasses(t.Context(), RequestsOf(pod, true)))
	for file, want := range map[string]string{
		parent + "/memory.low": fmt.Sprint(64 << 20), parent + "/memory.max": fmt.Sprint(128 << 20),
		parent + "/cpu.max": "200000 100000", parent + "/cpu.weight": "39",
		root + "/kubepods/burstable/memory.low": fmt.Sprint(64 << 20), root + "/kubepods/memory.min": fmt.Sprint(64 << 20),
		root + "/kubepods/burstable/cpu.weight": "39",
	} {
		got, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", file))
		require.NoError(t, err)
		require.Equal(t, want, strings.TrimSpace(string(got)), file)
	}
}
