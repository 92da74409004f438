package stubimages

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestImagesAreNamedByConstants(t *testing.T) {
	dir := t.TempDir()
	const source = "package p\n\nvar other = \"example.test/other:1\"\n\nconst (\n\tcount = 3\n\timage = \"example.test/tool:1\"\n)\n"
	if err := os.WriteFile(filepath.Join(dir, "p.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	sources := Sources{Upstream: filepath.Join(dir, "images")}
	names, err := sources.names(recipe{constants: []constant{{"p.go", "image"}}})
	if want := []string{"example.test/tool:1"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("the constant names %q, error %v, want %q", names, err, want)
	}
	for _, c := range []constant{{"p.go", "other"}, {"p.go", "count"}, {"absent.go", "image"}} {
		if names, err := sources.names(recipe{constants: []constant{c}}); err == nil || !strings.Contains(err.Error(), c.name) {
			t.Errorf("constant %v names %q, error %v, want one that names the constant", c, names, err)
		}
	}
}
