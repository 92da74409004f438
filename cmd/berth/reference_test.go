package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

var updateReference = flag.Bool("update", false, "write docs/reference/commands.md")

// TestReferenceOfCommands compares docs/reference/commands.md with what the commands say of themselves. To write it: go test ./cmd/berth
// -run TestReferenceOfCommands -update
func TestReferenceOfCommands(t *testing.T) {
	for _, variable := range []string{dataDirVariable, snapshotsVariable} { // defaults
		t.Setenv(variable, "")
	}
	var text strings.Builder
	text.WriteString("# Commands\n\nWhat `--help` prints of each command, generated from the code. A package has the same as man pages.\n")
	writeCommands(t, &text, newRoot())
	path := filepath.Join("..", "..", "docs", "reference", "commands.md")
	if *updateReference {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text.String()), 0o644))
		return
	}
	have, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, string(have) == text.String(),
		"docs/reference/commands.md differs from the commands: go test ./cmd/berth -run TestReferenceOfCommands -update")
}

// writeCommands writes the help of a command and of all below it.
func writeCommands(t *testing.T, to *strings.Builder, cmd *cobra.Command) {
	t.Helper()
	var help bytes.Buffer
	cmd.SetOut(&help)
	cmd.InitDefaultHelpFlag()
	require.NoError(t, cmd.Help())
	to.WriteString("\n## " + cmd.CommandPath() + "\n\n```text\n")
	for line := range strings.Lines(strings.TrimSpace(help.String())) {
		to.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	to.WriteString("```\n")
	for _, below := range cmd.Commands() {
		if below.IsAvailableCommand() && below.Name() != "completion" && below.Name() != "help" {
			writeCommands(t, to, below)
		}
	}
}
