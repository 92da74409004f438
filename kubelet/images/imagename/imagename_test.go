package imagename_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/kubelet/images/imagename"
)

func TestNames(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0", 64)
	for _, c := range []struct{ name, full, repository string }{
		{"nginx", "docker.io/library/nginx:latest", "docker.io/library/nginx"},
		{"nginx:1.29", "docker.io/library/nginx:1.29", "docker.io/library/nginx"},
		{"team/app", "docker.io/team/app:latest", "docker.io/team/app"},
		{"reg.example:5000/app", "reg.example:5000/app:latest", "reg.example:5000/app"},
		{"reg.example/app@" + digest, "reg.example/app@" + digest, "reg.example/app"},
		{"reg.example/app:1@" + digest, "reg.example/app@" + digest, "reg.example/app"},
		{digest, digest, ""},
		{"sha256:short", "sha256:short", ""},
		{"sha256:5000/app", "sha256:5000/app:latest", "sha256:5000/app"},
		{"Not A Name", "Not A Name", ""},
		{"", "", ""},
	} {
		require.Equal(t, c.full, imagename.Full(c.name), c.name)
		require.Equal(t, c.repository, imagename.Repository(c.name), c.name)
	}
	require.True(t, imagename.IsID(digest))
	require.False(t, imagename.IsID("nginx@"+digest))
	require.False(t, imagename.IsID("sha256:5000/app"), "it has a registry")
}
