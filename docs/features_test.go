package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	featureRow    = regexp.MustCompile("^\\| `(\\w+)` \\| (Alpha|Beta|GA|Deprecated) \\| (on|off) \\| ([a-z ]+) \\| ([A-Z0-9-]*) \\| (.*) \\|$")
	requirementID = regexp.MustCompile(`(?m)^- \*\*([A-Z]+-\d+)\*\* \(([a-z ]+)\)`)
)

// readRequirements returns the statuses of all requirements by their ids.
func readRequirements(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("requirements/*.md")
	require.NoError(t, err)
	statuses := map[string]string{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, match := range requirementID.FindAllStringSubmatch(string(content), -1) {
			statuses[match[1]] = match[2]
		}
	}
	return statuses
}

// TestFeaturesHaveRequirements reads the table of feature gates: what Berth does is the work of a requirement that says so,
// and nothing that Kubernetes has on by default is passed over.
func TestFeaturesHaveRequirements(t *testing.T) {
	requirements := readRequirements(t)
	content, err := os.ReadFile("features.md")
	require.NoError(t, err)
	rows, before := 0, ""
	for line := range strings.SplitSeq(string(content), "\n") {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		rows++
		row := featureRow.FindStringSubmatch(line)
		require.NotNil(t, row, "not a row of the table: %s", line)
		name, state, does, id, note := row[1], row[3], row[4], row[5], row[6]
		require.Less(t, before, name, "rows are sorted")
		before = name
		switch does {
		case "done":
			require.Contains(t, []string{"met", "partly"}, requirements[id], "%s: requirement %q", name, id)
		case "not yet":
			require.Equal(t, "on", state, name)
			require.Contains(t, []string{"not yet", "partly"}, requirements[id], "%s: requirement %q", name, id)
		case "off":
			require.Equal(t, "off", state, "%s is on in Kubernetes", name)
		case "not applicable":
			require.NotEmpty(t, note, "%s: say why", name)
		default:
			require.Fail(t, "unknown state", "%s: %q", name, does)
		}
	}
	require.Greater(t, rows, 90, "the table is not found")
}
