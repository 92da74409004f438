//go:build !race

package requirements_test

import (
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/reachability"
)

// TestRequirementsAreTestedAsTheProductUsesThem fails for a requirement of which every test calls a function of the
// module that neither its commands nor users of its public API can reach: such a test proves nothing about the product.
// The race detector would make it slow.
func TestRequirementsAreTestedAsTheProductUsesThem(t *testing.T) {
	module, err := reachability.Load("../..", publicAPI(t), "integration")
	require.NoError(t, err)
	production := module.Production()
	require.Greater(t, len(production), 3000, "the analysis found too few functions")
	for _, r := range readRequirements(t) {
		var unused []string
		used := len(r.tests) == 0
		for _, test := range r.tests {
			dir, name := path.Split(strings.Replace(test, ".", "/", 1))
			calls, found := module.TestCalls(dir, name)
			if !found {
				// A test of another module is not analysed. TestRequirements reports one that does not exist.
				used = used || ofAnotherModule(dir)
				continue
			}
			unreached := slices.DeleteFunc(calls, func(function string) bool { return production[function] })
			used = used || len(unreached) == 0
			if len(unreached) > 0 {
				unused = append(unused, test+": "+strings.Join(unreached, ", "))
			}
		}
		if !used {
			t.Errorf("%s: each of its tests calls functions that the product does not reach:\n  %s", r.id, strings.Join(unused, "\n  "))
		}
	}
}

// ofAnotherModule reports whether a directory of the repository belongs to another module than the root's.
func ofAnotherModule(dir string) bool {
	for dir = path.Clean(dir); dir != "."; dir = path.Dir(dir) {
		if _, err := os.Stat(path.Join("../..", dir, "go.mod")); err == nil {
			return true
		}
	}
	return false
}

// publicAPI are the packages that README.md lists under that heading.
func publicAPI(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(data), "\n## Public API\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	var packages []string
	for _, match := range quoted.FindAllStringSubmatch(section, -1) {
		packages = append(packages, match[1])
	}
	return packages
}
