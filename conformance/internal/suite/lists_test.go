package suite_test

import (
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
