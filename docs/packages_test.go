package docs_test

import (
	"errors"
	"flag"
	"go/build"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write what the packages say of themselves into architecture.md")

// packageRow is a line of the list of packages in architecture.md: | `path` | what it does |.
var packageRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| .* \\|$")

// TestArchitectureListsPackages compares the list of packages with the packages and the first sentence of each one's
// documentation. To write the list: go test ./docs -update
func TestArchitectureListsPackages(t *testing.T) {
	data, err := os.ReadFile("architecture.md")
	require.NoError(t, err)
	before, list, found := strings.Cut(string(data), "\n## Packages\n")
	require.True(t, found, "architecture.md has no section of that name")
	list, after, more := strings.Cut(list, "\n## ")
	if more {
		after = "\n## " + after
	}
	want := packageRows(t, "..")
	require.Greater(t, len(want), 80, "the test finds too few packages")
	if slices.Equal(packageRow.FindAllString(list, -1), want) {
		return
	}
	if !*update {
		t.Fatal("the section Packages of docs/architecture.md differs from the packages' documentation: run go test ./docs -update")
	}
	introduction, _, _ := strings.Cut(list, "| --- |")
	text := before + "\n## Packages\n" + introduction + "| --- | --- |\n" + strings.Join(want, "\n") + "\n" + after
	require.NoError(t, os.WriteFile("architecture.md", []byte(text), 0o600))
}

// TestPackageRows finds packages and skips other modules, tests and data.
func TestPackageRows(t *testing.T) {
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
	packages := readPackages(t, root)
	byElements := func(x, y string) int { return slices.Compare(strings.Split(x, "/"), strings.Split(y, "/")) }
	for _, name := range slices.SortedFunc(maps.Keys(packages), byElements) {
		words := strings.Fields(packages[name].Doc)
		says := strings.TrimSuffix(strings.Join(words[min(len(words), 2):], " "), ".") // without "Package name"
		rows = append(rows, "| `"+name+"` | "+says+" |")
	}
	return rows
}

// readPackages returns the packages of the module below root, with their files of tag integration, by their paths in the
// module. It skips directories that hold nothing but tests, or nothing.
func readPackages(t *testing.T, root string) map[string]*build.Package {
	t.Helper()
	all := build.Default
	all.BuildTags = []string{"integration"}
	found := map[string]*build.Package{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() || path == root {
			return err
		}
		_, otherModule := os.Stat(filepath.Join(path, "go.mod"))
		if strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata" || otherModule == nil {
			return filepath.SkipDir
		}
		pkg, err := all.ImportDir(path, build.ImportComment)
		if empty := (*build.NoGoError)(nil); errors.As(err, &empty) || err == nil && len(pkg.GoFiles) == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		found[filepath.ToSlash(name)] = pkg
		return err
	})
	require.NoError(t, err)
	return found
}
