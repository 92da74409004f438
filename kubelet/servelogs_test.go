package kubelet

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestServeLogsFollowsNoLinkOutside serves a directory in which a Pod has made links to other files.
func TestServeLogsFollowsNoLinkOutside(t *testing.T) {
	dir, secret := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "syslog"), []byte("a line"), 0o600))
	require.NoError(t, os.Symlink(secret, filepath.Join(dir, "absolute")))
	require.NoError(t, os.Symlink(filepath.Dir(secret), filepath.Join(dir, "directory")))
	require.NoError(t, os.Symlink("syslog", filepath.Join(dir, "inside")))
	for path, want := range map[string]int{
		"syslog": http.StatusOK, "inside": http.StatusOK, "": http.StatusOK,
		"absolute": http.StatusInternalServerError, "directory/secret": http.StatusInternalServerError, "../secret": http.StatusNotFound,
	} {
		response := httptest.NewRecorder()
		serveLogs(dir, response, httptest.NewRequest(http.MethodGet, "/logs/"+path, http.NoBody))
		if want == http.StatusOK {
			require.Equal(t, want, response.Code, path)
			continue
		}
		require.GreaterOrEqual(t, response.Code, 400, path)
		require.NotEqual(t, "secret", response.Body.String(), path)
	}
}
