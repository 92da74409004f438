package server

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFlagzHasNoSecrets(t *testing.T) {
	require.Equal(t, map[string]string{
		"manifest-url": "https://REDACTED@example.com/pods?x=1", "manifest-url-header": "REDACTED", "v": "2", "image-token": "REDACTED",
		"empty-header": "", "node-labels": "a=b",
	}, flags{
		"manifest-url": "https://user:canary@example.com/pods?x=1", "manifest-url-header": "Authorization:canary", "v": "2",
		"image-token": "canary", "empty-header": "", "node-labels": "a=b",
	}.GetFlagz())
}
