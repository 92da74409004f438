package downwardapi

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/quantity"
)

// FuzzFields reads arbitrary references of a Pod to itself, as a manifest may have them: each is a value, or an error that names it.
func FuzzFields(f *testing.F) {
	f.Add("metadata.labels['a/b']", "limits.cpu", "1500m", "1m")
	f.Add("metadata.annotations['']']", "requests.memory", "1Gi", "1Mi")
	f.Add("['x']", "limits.cpu", "1", "2305843009213693952")
	f.Add("metadata.labels", "requests.hugepages-2Mi", "9E", "1n")
	f.Fuzz(func(t *testing.T, path, name, amount, divisor string) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"a/b": "c"}}}
		value, ok, err := MetadataField(pod, path)
		if err != nil {
			require.Empty(t, value)
		}
		require.False(t, !ok && (value != "" || err != nil))
		have, err := quantity.Parse(amount)
		by, divisorErr := quantity.Parse(divisor)
		if err != nil || divisorErr != nil || have.Sign() < 0 || by.Sign() < 0 {
			return
		}
		list := corev1.ResourceList{corev1.ResourceCPU: have, corev1.ResourceMemory: have, "hugepages-2Mi": have}
		container := &corev1.Container{Resources: corev1.ResourceRequirements{Requests: list, Limits: list}}
		text, err := ResourceField(pod, container, &corev1.ResourceFieldSelector{Resource: name, Divisor: by}, nil)
		if err != nil {
			require.ErrorContains(t, err, "resourceFieldRef")
			return
		}
		result, err := resource.ParseQuantity(text)
		require.NoError(t, err)
		require.GreaterOrEqual(t, result.Sign(), 0, "%s in units of %s is %s", amount, divisor, text)
		_, rest, _ := strings.Cut(name, ".")
		has := list[corev1.ResourceName(rest)]
		require.Equal(t, has.IsZero(), result.IsZero(), "%s in units of %s is %s", amount, divisor, text)
	})
}
