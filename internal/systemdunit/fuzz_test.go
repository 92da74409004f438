package systemdunit_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/systemdunit"
)

// FuzzOf finds the service in an arbitrary file of cgroups: it is an element of a path there, and none of a user's session.
func FuzzOf(f *testing.F) {
	f.Add("0::/system.slice/berth.service\n")
	f.Add("12:cpu:/user.slice/user-0.slice/user@0.service/app.slice/a.service\n1:name=systemd:/system.slice/b.service/c\n")
	f.Add("/.service")
	f.Fuzz(func(t *testing.T, content string) {
		file := filepath.Join(t.TempDir(), "cgroup")
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		service := systemdunit.Of(file)
		if service == "" {
			return
		}
		require.True(t, strings.HasSuffix(service, ".service"))
		require.False(t, strings.HasPrefix(service, "user@"))
		require.NotContains(t, service, "/")
		require.NotContains(t, service, "\n")
		require.Contains(t, content, service)
	})
}
