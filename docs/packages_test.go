package docs_test

import (
	"errors"
	"go/build"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// packageRow is a line of the list of packages in architecture.md: | `path` | what it does |.
var packageRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| .* \\|$")

// TestEveryPackageIsInTheArchitecture holds the list of packages to the packages, each with the first sentence that it says
// of itself.
func TestEveryPackageIsInTheArchitecture(t *testing.T) {
	data, err := os.ReadFile("architecture.md")
	require.NoError(t, err)
	_, list, found := strings.Cut(string(data), "\n## Packages\n")
	require.True(t, found, "architecture.md has no section of that name")
	list, _, _ = strings.Cut(list, "\n## ")
	want := packageRows(t, "..")
	require.Greater(t, len(want), 80, "there are more packages than that")
	if listed := packageRow.FindAllString(list, -1); !slices.Equal(listed, want) {
		t.Errorf("the section Packages of docs/architecture.md is not what the packages say of themselves; it is to be:\n%s",
			strings.Join(want, "\n"))
	}
}

// TestThePackageFinderFinds tries it on packages that it lists and on some that it passes by.
func TestThePackageFinderFinds(t *testing.T) {
	root := t.TempDir()
	for path, text := range map[string]string{
		"a/a.go":          "// Package a does this:\n// and that. And more.\npackage a\n",
		"a/b/main.go":     "// Command b is\n// one.\npackage main\n",
		"tests/a_test.go": "package tests\n",
		"other/go.mod":    "module other\n",
		"other/c/c.go":    "// Package c is of another module.\npackage c\n",
		".hidden/d.go":    "package d\n",
		"testdata/e/e.go": "package e\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, path), []byte(text), 0o600))
	}
	require.Equal(t, []string{"| `a` | does this: and that |", "| `a/b` | is one |"}, packageRows(t, root))
}

// packageRows are the lines for the packages of the module below root.
func packageRows(t *testing.T, root string) []string {
	t.Helper()
	var rows []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() || path == root {
			return err
		}
		_, otherModule := os.Stat(filepath.Join(path, "go.mod"))
		if strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata" || otherModule == nil {
			return filepath.SkipDir
		}
		row, err := packageRowOf(root, path)
		if row != "" {
			rows = append(rows, row)
		}
		return err
	})
	require.NoError(t, err)
	return rows
}

// packageRowOf is empty for a directory that holds nothing but tests, or nothing.
func packageRowOf(root, dir string) (string, error) {
	all := build.Default
	all.BuildTags = []string{"integration"}
	pkg, err := all.ImportDir(dir, build.ImportComment)
	if empty := (*build.NoGoError)(nil); errors.As(err, &empty) {
		return "", nil
	}
	if err != nil || len(pkg.GoFiles) == 0 {
		return "", err
	}
	name, err := filepath.Rel(root, dir)
	if err != nil {
		return "", err
	}
	words := strings.Fields(pkg.Doc)
	says := strings.TrimSuffix(strings.Join(words[min(len(words), 2):], " "), ".") // without "Package name"
	return "| `" + filepath.ToSlash(name) + "` | " + says + " |", nil
}
