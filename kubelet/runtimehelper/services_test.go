package runtimehelper

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/internal/podutil"
)

// TestStaticPodsDoNotWaitForServices holds for the static Pod of the API server, as kubeadm starts it: without it there will be
// no list of Services.
func TestStaticPodsDoNotWaitForServices(t *testing.T) {
	services := NewServices(fake.NewClientset())
	static := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{podutil.SourceAnnotation: "file"}}}
	ended, end := context.WithCancel(t.Context())
	end()

	list, err := services.For(ended, static)
	require.NoError(t, err)
	require.Empty(t, list)
	_, err = services.For(ended, &corev1.Pod{})
	require.ErrorIs(t, err, context.Canceled)

	require.NoError(t, services.Replace([]any{&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}}}, "1"))
	for _, pod := range []*corev1.Pod{static, {}} {
		list, err = services.For(t.Context(), pod)
		require.NoError(t, err)
		require.Len(t, list, 1)
	}
}
