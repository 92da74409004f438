package suite_test

import (
	"strings"
	"testing"

	"github.com/berth-dev/berth/conformance/internal/suite"
)

func TestListsNameEachSpecOnceAndCIIsAPart(t *testing.T) {
	expected := read(t, "../../expected.txt")
	for name := range read(t, "../../ci.txt") {
		if !expected[name] {
			t.Errorf("ci.txt has %q, expected.txt has not", name)
		}
	}
	for name := range read(t, "../../dra.txt") {
		if expected[name] {
			t.Errorf("dra.txt has %q, which needs one node, and so has expected.txt", name)
		}
	}
}

func read(t *testing.T, path string) map[string]bool {
	t.Helper()
	names, err := suite.ReadList(path)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, name := range names {
		if seen[name] {
			t.Errorf("%s has %q twice", path, name)
		}
		seen[name] = true
	}
	return seen
}

// TestRequired checks the number, which changes with upstream's version: the documents name it.
func TestRequired(t *testing.T) {
	names, err := suite.Required()
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, name := range names {
		if !strings.HasSuffix(name, "[Conformance]") || seen[name] {
			t.Errorf("%q", name)
		}
		seen[name] = true
	}
	if len(seen) != 446 {
		t.Errorf("%d specs", len(seen))
	}
}
