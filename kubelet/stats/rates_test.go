package stats

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestRatesAreTakenOverTheWindow(t *testing.T) {
	var r cpuRates
	began := time.Unix(1800000000, 0)
	// observe returns the cores used, in percent, -1 if that is unknown.
	observe := func(seconds float64, used float64) int {
		rate := r.observe("k", cpuReading{at: began.Add(time.Duration(seconds * 1e9)), nanos: uint64(used * 1e9)})
		if rate == nil {
			return -1
		}
		return int(*rate / 1e7)
	}
	require.Equal(t, -1, observe(0, 5), "one reading gives no rate")
	require.Equal(t, 50, observe(2, 6), "the first rates are of what there is")
	require.Equal(t, 20, observe(10, 7))
	require.Equal(t, 18, observe(11, 7), "it has slept for the last second only")
	require.Equal(t, 10, observe(20, 8), "of the last ten seconds")
	require.Equal(t, 10, observe(20, 8), "the same reading again has the same rate")
	require.Equal(t, -1, observe(21, 1), "a container that was started again")
	require.Equal(t, 100, observe(22, 2))

	r.observe("gone", cpuReading{at: began, nanos: 1})
	r.keepOnly([]*runtimeapi.PodSandboxStats{{Linux: &runtimeapi.LinuxPodSandboxStats{Containers: []*runtimeapi.ContainerStats{
		{Attributes: &runtimeapi.ContainerAttributes{Id: "k"}},
	}}}})
	require.Len(t, r.last, 1)
	require.Equal(t, 100, observe(23, 3))
}

// gone is a runtime that lists one Pod, another one each time.
type gone struct {
	Runtime
	lists int
}

func (g *gone) ListPodSandboxStats(context.Context, *runtimeapi.ListPodSandboxStatsRequest, ...grpc.CallOption) (
	*runtimeapi.ListPodSandboxStatsResponse, error,
) {
	g.lists++
	return &runtimeapi.ListPodSandboxStatsResponse{Stats: []*runtimeapi.PodSandboxStats{{
		Attributes: &runtimeapi.PodSandboxAttributes{Metadata: &runtimeapi.PodSandboxMetadata{Uid: strconv.Itoa(g.lists)}},
		Linux:      &runtimeapi.LinuxPodSandboxStats{Cpu: &runtimeapi.CpuUsage{Timestamp: 1, UsageCoreNanoSeconds: &runtimeapi.UInt64Value{Value: 1}}},
	}}}, nil
}

// TestEndedPodsLeaveNoReadings measures Pods as the eviction manager does, on a node whose statistics are read by no other.
func TestEndedPodsLeaveNoReadings(t *testing.T) {
	g := &gone{}
	p, err := New(Deps{Runtime: g, Pods: func() []*corev1.Pod {
		return []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{UID: types.UID(strconv.Itoa(g.lists))}}}
	}}, Config{})
	require.NoError(t, err)
	for range 5 {
		_, err := p.Usage(t.Context(), false)
		require.NoError(t, err)
		require.Len(t, p.podRates.last, 1)
	}
}
