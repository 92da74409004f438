package shellword_test

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/shellword"
)

// TestAShellReadsTheWord has a shell print the quoted words.
func TestAShellReadsTheWord(t *testing.T) {
	for _, word := range []string{"", "/var/lib/berth", "/tmp/the data", "it's", "$HOME `id` \"x\" \\ !", "~/x", "a\nb", "*", "-x=1", "/tmp/données"} {
		out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", "printf %s "+shellword.Quote(word)).CombinedOutput()
		require.NoError(t, err, word)
		require.Equal(t, word, string(out))
	}
	require.Equal(t, "/var/lib/berth-2", shellword.Quote("/var/lib/berth-2"))
	require.Equal(t, "'the data'", shellword.Quote("the data"))
}
