package cm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// TestWeightsOfManyPodsAreThatOfOne: whether a request is that of one Pod or divided among several, they get the same CPU time.
func TestWeightsOfManyPodsAreThatOfOne(t *testing.T) {
	weight := func(pods int, milliCPU int64) float64 { return float64(pods) * float64(cpuWeight(Shares(milliCPU))) }
	require.InEpsilon(t, weight(1, 4000), weight(8, 500), 0.05)
	require.InEpsilon(t, weight(1, 64000), weight(64, 1000), 0.05)
	sum := Requests{}
	for range 8 {
		pod := podOf("u", corev1.ResourceRequirements{Requests: amounts("cpu", "500m")})
		sum = sum.Replace(Requests{}, RequestsOf(pod, false))
	}
	_, class := classLimits(sum, ResourceOptions{Unified: true})
	require.InEpsilon(t, weight(1, 4000), float64(class.resources(true).CpuWeight), 0.05, "the class has as much as a Guaranteed Pod beside it")
}

// TestPodsGetNoHugePagesThatTheyDoNotRequest: their containers may have no limit of their own.
func TestPodsGetNoHugePagesThatTheyDoNotRequest(t *testing.T) {
	opts := ResourceOptions{HugePageSizes: []string{"2MB", "1GB"}}
	for name, c := range map[string]struct {
		requests corev1.ResourceList
		want     map[string]uint64
	}{
		"BestEffort": {nil, map[string]uint64{"2MB": 0, "1GB": 0}},
		"Burstable":  {amounts("cpu", "1"), map[string]uint64{"2MB": 0, "1GB": 0}},
		"one size":   {amounts("cpu", "1", "hugepages-2Mi", "4Mi"), map[string]uint64{"2MB": 4 << 20, "1GB": 0}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, PodLimits(podOf("u", corev1.ResourceRequirements{Requests: c.requests}), 0, opts).Hugepages)
		})
	}
	const group = "/kubepods/besteffort/podu-1"
	h := unifiedHierarchy(t, "kubepods", "kubepods/besteffort", group)
	m, err := New(Deps{}, Config{Hierarchies: []Hierarchy{h}, Resources: ResourceOptions{Unified: true, HugePageSizes: []string{"2MB"}}})
	require.NoError(t, err)
	_, err = m.EnsurePod(t.Context(), podOf("u-1", corev1.ResourceRequirements{}))
	require.NoError(t, err)
	for _, file := range []string{"hugetlb.2MB.max", "hugetlb.2MB.rsvd.max"} {
		content, err := os.ReadFile(filepath.Join(h.Dir, group, file))
		require.NoError(t, err)
		require.Equal(t, "0", strings.TrimSpace(string(content)), file)
	}
}
