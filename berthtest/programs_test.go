package berthtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKindOfSource(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	for source, want := range map[string]sourceKind{
		"example.com/app": goPackage,
		dir:               goPackage,
		filepath.Dir(file("layout/oci-layout", "{}")):   archive,
		file("image.tar", "manifest.json"):              archive,
		file("empty", ""):                               archive,
		file("program", "\x7fELF and more of the same"): program,
	} {
		kind, err := kindOf(source)
		require.NoError(t, err, source)
		require.Equal(t, want, kind, source)
	}
}

func TestMissingProgramsSayWhatToDo(t *testing.T) {
	t.Setenv(binEnv, t.TempDir())
	_, err := findPrograms(t.Context(), "", false)
	require.ErrorContains(t, err, "no program berth there")
	t.Setenv("PATH", t.TempDir())
	t.Setenv(binEnv, "")
	_, err = findPrograms(t.Context(), "", false) // without the go command, too
	require.ErrorContains(t, err, "install berth")
	require.ErrorIs(t, err, ErrUnavailable)
}

func TestMachinesWithoutProgramsMaySkip(t *testing.T) {
	t.Setenv(binEnv, t.TempDir())
	t.Setenv(skipEnv, "1")
	var skipped *testing.T
	t.Run("skipped", func(t *testing.T) {
		skipped = t
		Start(t)
	})
	require.True(t, skipped.Skipped())
}
