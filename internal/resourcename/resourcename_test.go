package resourcename_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/resourcename"
)

func TestKinds(t *testing.T) {
	for name, want := range map[corev1.ResourceName]struct{ huge, extended bool }{
		"cpu": {}, "memory": {}, "ephemeral-storage": {}, "": {}, "hugepages": {}, "gpu": {},
		"hugepages-2Mi": {huge: true}, "hugepages-1Gi": {huge: true},
		"example.com/gpu": {extended: true}, "example.com/hugepages-2Mi": {extended: true}, "example.com:8080/gpu": {},
		"kubernetes.io/gpu": {}, "example.kubernetes.io/gpu": {}, "requests.example.com/gpu": {}, "example.com/a/b": {}, "/gpu": {},
	} {
		require.Equal(t, want.huge, resourcename.IsHugePages(name), name)
		require.Equal(t, want.extended, resourcename.IsExtended(name), name)
	}
	size, is := resourcename.HugePageSize(resourcename.HugePages(2 << 20))
	require.True(t, is)
	require.Equal(t, "2Mi", size)
}
