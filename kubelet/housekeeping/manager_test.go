package housekeeping

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// TestANegativeSizeRotatesNoLog has the size with which upstream's kubelet leaves logs to others.
func TestANegativeSizeRotatesNoLog(t *testing.T) {
	m := newManager(t, &orphanedPod{}, make(chan struct{}), Config{LogMaxSize: -1})
	m.deps.PodEvents.Changed(&corev1.Pod{}, corev1.PodStatus{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, m.Start(ctx))
}
