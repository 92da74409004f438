package docs_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheProvisionerShownIsTheOneThatIsTested holds the document to the program that the integration tests run.
func TestTheProvisionerShownIsTheOneThatIsTested(t *testing.T) {
	program, err := os.ReadFile("../examples/provisioner/main.go")
	require.NoError(t, err)
	document, err := os.ReadFile("provisioners.md")
	require.NoError(t, err)
	require.Contains(t, string(document), "```go\n"+string(program)+"```\n")
	lines := strings.Count(string(program), "\n")
	require.LessOrEqual(t, lines, 48, "a whole provisioner fits on one page")
}
