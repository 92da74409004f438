package docs_test

import (
	"fmt"
	"go/build"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// modulePath is the path of the root module, as its imports begin.
const modulePath = "github.com/berth-dev/berth/"

// TestPackagesImportLowerLayers fails for an import that the layers in architecture.md do not allow.
func TestPackagesImportLowerLayers(t *testing.T) {
	data, err := os.ReadFile("architecture.md")
	require.NoError(t, err)
	layers := readLayers(string(data), "..")
	require.Len(t, layers, 11, "the test does not find the layers in architecture.md")
	packages := readPackages(t, "..")
	for _, problem := range layerProblems(layers, packages) {
		t.Error(problem)
	}
	for _, component := range slices.Concat(layers...) {
		require.True(t, hasPackageBelow(packages, component), "architecture.md names %s, which has no package", component)
	}
}

// TestLayerProblems covers imports upwards, between components of one layer, within a component, and by packages outside of
// the layers.
func TestLayerProblems(t *testing.T) {
	layers := [][]string{{"top"}, {"left", "right"}, {"low"}}
	imports := map[string][]string{
		"top": {"left", "low/x", "words"}, "left": {"low", "left/a"}, "left/a": {"right/b"}, "right/b": {"fmt"},
		"low": {"top"}, "low/x": {"low"}, "tool": {"low"}, "words": nil, "lowly": nil,
	}
	require.Empty(t, layerProblems(layers, nil))
	packages := map[string]*build.Package{}
	for name, paths := range imports {
		packages[name] = &build.Package{}
		for _, path := range paths {
			if path != "fmt" {
				path = modulePath + path
			}
			packages[name].Imports = append(packages[name].Imports, path)
		}
	}
	require.Equal(t, []string{
		"left/a imports right/b, which is in the same layer",
		"low imports top, which is in a layer above it",
	}, layerProblems(layers, packages))
	packages["top"].Imports = []string{modulePath + "tool"}
	require.Contains(t, layerProblems(layers, packages), "top imports tool, which is in no layer and imports packages of one")
}

// readLayers returns the components of each layer, the highest first, from the list in the document: in each line, what
// comes before the description are directories below root.
func readLayers(document, root string) [][]string {
	_, section, _ := strings.Cut(document, "\n## Layers of the root module\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var layers [][]string
	for line := range strings.Lines(section) {
		if !strings.HasPrefix(line, "    ") {
			continue
		}
		var layer []string
		for _, word := range strings.Fields(line) {
			component := strings.TrimSuffix(strings.TrimSuffix(word, ","), "/…")
			if info, err := os.Stat(filepath.Join(root, component)); err != nil || !info.IsDir() {
				break
			}
			layer = append(layer, component)
		}
		layers = append(layers, layer)
	}
	return layers
}

// layerProblems describes each import of a package of the same layer's other components or of a layer above, and of a
// package outside of the layers, unless that imports nothing of the module.
func layerProblems(layers [][]string, packages map[string]*build.Package) []string {
	var problems []string
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		component, layer := layerOf(layers, name)
		if layer < 0 {
			continue // a program, or a package without imports
		}
		for _, path := range packages[name].Imports {
			imported, own := strings.CutPrefix(path, modulePath)
			if !own {
				continue
			}
			problem := ""
			switch other, below := layerOf(layers, imported); {
			case below < 0 && importsModule(packages[imported]):
				problem = "in no layer and imports packages of one"
			case below < 0 || other == component || below > layer:
			case below == layer:
				problem = "in the same layer"
			default:
				problem = "in a layer above it"
			}
			if problem != "" {
				problems = append(problems, fmt.Sprintf("%s imports %s, which is %s", name, imported, problem))
			}
		}
	}
	return problems
}

// layerOf returns the component that a package belongs to and the index of its layer, -1 if it has none.
func layerOf(layers [][]string, name string) (component string, layer int) {
	for i, components := range layers {
		for _, component := range components {
			if name == component || strings.HasPrefix(name, component+"/") {
				return component, i
			}
		}
	}
	return "", -1
}

func importsModule(pkg *build.Package) bool {
	return pkg != nil && slices.ContainsFunc(pkg.Imports, func(path string) bool { return strings.HasPrefix(path, modulePath) })
}

func hasPackageBelow(packages map[string]*build.Package, component string) bool {
	for name := range packages {
		if name == component || strings.HasPrefix(name, component+"/") {
			return true
		}
	}
	return false
}
