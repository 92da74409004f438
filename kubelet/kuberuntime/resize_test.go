package kuberuntime

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/container"
)

// TestMemoryReservationIsResized covers changes of memory.min, memory.low and memory.high of a running container: it gets
// them without a restart, also where its policy restarts it for another limit, and a value that is gone is removed.
func TestMemoryReservationIsResized(t *testing.T) {
	c := &corev1.Container{Name: "c", ResizePolicy: []corev1.ContainerResizePolicy{
		{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer},
	}}
	for name, test := range map[string]struct{ have, want, set map[string]string }{
		"same":            {map[string]string{"memory.low": "1", "memory.high": "9"}, map[string]string{"memory.low": "1", "memory.high": "9"}, nil},
		"never throttled": {map[string]string{"memory.low": "1", "memory.high": "max"}, map[string]string{"memory.low": "1"}, nil},
		"another request": {map[string]string{"memory.low": "1"}, map[string]string{"memory.low": "2"}, map[string]string{"memory.low": "2"}},
		"not throttled any more": {map[string]string{"memory.low": "1", "memory.high": "9"}, map[string]string{"memory.low": "1"},
			map[string]string{"memory.low": "1", "memory.high": "max"}},
		"a runtime that does not report them": {nil, map[string]string{"memory.low": "2"}, nil},
		"a node that does not set them":       {map[string]string{"memory.oom.group": "1"}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := planner{in: Inputs{Resources: func(*corev1.Container) *runtimeapi.LinuxContainerResources {
				return &runtimeapi.LinuxContainerResources{CpuShares: 2, Unified: maps.Clone(test.want)}
			}}}
			s := &container.ContainerStatus{ID: "id", Resources: &runtimeapi.ContainerResources{
				Linux: &runtimeapi.LinuxContainerResources{CpuShares: 2, Unified: test.have},
			}}
			require.False(t, p.resizeNeedsRestart(c, s))
			p.resize(c, s)
			if test.set == nil {
				require.Empty(t, p.out.Resize)
				return
			}
			require.Len(t, p.out.Resize, 1)
			require.Equal(t, test.set, p.out.Resize[0].Want.Unified)
		})
	}
}
