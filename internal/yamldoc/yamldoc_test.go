package yamldoc_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/yamldoc"
)

func TestCheckOne(t *testing.T) {
	for _, text := range []string{"", "a: 1\n", "---\na: 1\n---\n", "# first\n---\na: 1\n---\n# last\n", `{"a": 1}`} {
		require.NoError(t, yamldoc.CheckOne([]byte(text)), text)
	}
	for _, text := range []string{"a: 1\n---\nb: 1\n", "{\"a\": 1}\n---\n{\"a\": 1}\n"} {
		require.ErrorContains(t, yamldoc.CheckOne([]byte(text)), "more than one YAML document", text)
	}
}
