package metrics

import (
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
)

// TestPodsWithUserNamespaces counts them, and what fails of them, apart from the others.
func TestPodsWithUserNamespaces(t *testing.T) {
	hostUsers, failed := false, errors.New("no")
	for name, tt := range map[string]struct {
		pod            *corev1.Pod
		started, fails float64
	}{
		"own users":    {&corev1.Pod{Spec: corev1.PodSpec{HostUsers: &hostUsers}}, 2, 2},
		"host's users": {&corev1.Pod{}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newPodStarts(prometheus.NewRegistry())
			s.SandboxStarted(tt.pod, true, failed)
			s.SandboxStarted(tt.pod, false, nil)
			s.ContainerStarted(tt.pod, podutil.Regular, "RunContainerError", failed)
			s.ContainerStarted(tt.pod, podutil.Regular, "", nil)
			require.InDelta(t, tt.started, testutil.ToFloat64(s.userPods), 0)
			require.InDelta(t, tt.fails, testutil.ToFloat64(s.userPodErrors), 0)
		})
	}
}
