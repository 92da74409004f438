package explain

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRefused has names that read like a refusal, and refusals.
func TestRefused(t *testing.T) {
	for text, want := range map[string]bool{
		"failed to resolve image: 127.0.0.1:40375/open/none:v1: not found":                                       false,
		"Get \"http://127.0.0.1:40375/v2/open/none/manifests/v1\": dial tcp 127.0.0.1:40375: connection refused": false,
		"unexpected status from HEAD request to http://127.0.0.1:40375/v2/open/none/manifests/v1: 403 Forbidden": true,
		"unexpected status from HEAD request to http://127.0.0.1:40375/v2/open/none/manifests/v1: 401":           true,
		"pull access denied, repository does not exist or may require authorization":                             true,
		"server message: insufficient_scope: authorization failed":                                               true,
	} {
		require.Equal(t, want, isDenied(text, "127.0.0.1:40375/open/none:v1"), text)
	}
	require.False(t, isDenied("example.org/denied/forbidden:401: not found", "example.org/denied/forbidden:401"))
	require.True(t, isDenied("https://example.org/v2/team/app/manifests/v1: 403 Forbidden", "example.org/team/app:v1"))
}
