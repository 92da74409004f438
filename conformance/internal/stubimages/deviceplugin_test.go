package stubimages

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const daemonSet = `apiVersion: apps/v1
kind: DaemonSet
spec:
  template:
    spec:
      containers:
      - name: plugin
        image: IMAGE
`

func TestImagesAreNamedByManifests(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first.yaml", strings.ReplaceAll(daemonSet, "IMAGE", "example.test/plugin:1"))
	write("same.yaml", strings.ReplaceAll(daemonSet, "IMAGE", "example.test/plugin:1"))
	write("second.yaml", strings.ReplaceAll(daemonSet, "IMAGE", "example.test/plugin:2"))
	write("none.yaml", "kind: DaemonSet\n")
	sources := Sources{Upstream: filepath.Join(dir, "images")}
	names, err := sources.names(recipe{manifests: []string{"first.yaml", "same.yaml", "second.yaml"}})
	if want := []string{"example.test/plugin:1", "example.test/plugin:2"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("the manifests name %q, error %v, want %q", names, err, want)
	}
	for _, file := range []string{"none.yaml", "absent.yaml"} {
		if names, err := sources.names(recipe{manifests: []string{file}}); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("manifest %s names %q, error %v, want one that names the file", file, names, err)
		}
	}
}

func TestRecipesComeAfterTheOnesTheyAreOn(t *testing.T) {
	seen := map[string]bool{"": true, "base": true}
	for _, r := range recipes() {
		if !seen[r.on] {
			t.Errorf("recipe %q is on %q, which comes later or not at all", r.name, r.on)
		}
		if seen[r.name] {
			t.Errorf("two recipes have the name %q", r.name)
		}
		seen[r.name] = true
	}
}
