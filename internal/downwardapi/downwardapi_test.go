package downwardapi

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestMetadata(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "p", Labels: map[string]string{"b": "2", "a": "1\n"}, Annotations: map[string]string{"Up/Case": "x"},
	}}
	for path, c := range map[string]struct {
		want  string
		ok    bool
		fault string
	}{
		"metadata.name":                   {"p", true, ""},
		"metadata.labels":                 {"a=\"1\\n\"\nb=\"2\"", true, ""},
		"metadata.labels['b']":            {"2", true, ""},
		"metadata.annotations['Up/Case']": {"x", true, ""},
		"metadata.labels['Up/Case/']":     {"", true, "invalid key"},
		"spec.x['y']":                     {"", true, "only metadata.labels"},
		"spec.nodeName":                   {"", false, ""},
	} {
		got, ok, err := MetadataField(pod, path)
		require.Equal(t, c.want, got, path)
		require.Equal(t, c.ok, ok, path)
		if c.fault != "" {
			require.ErrorContains(t, err, c.fault)
		}
	}
}

// TestAmountIsExact holds what a floating-point division gets wrong.
func TestAmountIsExact(t *testing.T) {
	c := &corev1.Container{Name: "c"}
	c.Resources.Requests = corev1.ResourceList{"memory": *resource.NewQuantity(1<<53+1, resource.BinarySI)}
	got, err := ResourceField(&corev1.Pod{}, c, &corev1.ResourceFieldSelector{Resource: "requests.memory"}, nil)
	require.NoError(t, err)
	require.Equal(t, "9007199254740993", got)
	pod := &corev1.Pod{Spec: corev1.PodSpec{Resources: &corev1.ResourceRequirements{
		Limits: corev1.ResourceList{"cpu": resource.MustParse("1500m")}}}}
	got, err = ResourceField(pod, c, &corev1.ResourceFieldSelector{Resource: "limits.cpu"}, corev1.ResourceList{"cpu": resource.MustParse("8")})
	require.NoError(t, err)
	require.Equal(t, "2", got, "the Pod's own limit comes before the node's, in files as in the environment")
}
