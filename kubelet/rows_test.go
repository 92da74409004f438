package kubelet_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/testfuncs"
)

// families are how many rows the catalogue has of each kind, and which of them are not looked for here: they are of the
// lowest rank, or of themes that are still to come (eviction, resource managers, devices, shutdown).
var families = []struct {
	name  string
	last  int
	apart []int
}{
	{"CFG", 14, []int{9}}, {"ADM", 13, []int{5, 6, 9, 10, 11}}, {"WRK", 29, nil}, {"PH", 6, nil}, {"ST", 12, nil}, {"PR", 11, nil},
	{"ENV", 4, nil}, {"NET", 5, nil}, {"SEC", 6, nil}, {"RES", 11, nil}, {"IMG", 7, nil}, {"GC", 2, nil}, {"LOG", 2, nil},
	{"ND", 13, []int{11, 12}}, {"SRV", 13, nil}, {"EVT", 2, nil}, {"MET", 1, nil}, {"CKP", 5, nil},
}

// testRooms are where the tests are that the rows name.
var testRooms = map[string]string{
	"kubelet": ".", "rotate": "logs/rotate", "probe": "prober/probe", "integration": "../test/integration",
	"ledger": "images/ledger", "provider": "images/provider",
}

// TestEveryRowHasItsTests keeps the tables true: every row of the catalogue once, and each test and spec there. A row
// without any says why.
func TestEveryRowHasItsTests(t *testing.T) {
	specs, err := os.ReadFile("../conformance/expected.txt")
	require.NoError(t, err)
	seen := map[string]bool{}
	known := map[string]map[string]bool{}
	for _, r := range append(append([]row(nil), podRows...), nodeRows...) {
		require.False(t, seen[r.id], "row %s stands twice", r.id)
		seen[r.id] = true
		require.NotEmpty(t, r.says, r.id)
		require.NotEmpty(t, r.tests+r.lacks, "row %s has no test and does not say why", r.id)
		for _, test := range strings.Fields(r.tests) {
			room, name, _ := strings.Cut(test, ".")
			if known[room] == nil {
				known[room] = testsIn(t, room)
			}
			require.True(t, known[room][name], "row %s names %s, which is not there", r.id, test)
		}
		for _, spec := range strings.Split(r.specs, ";") {
			require.Contains(t, string(specs), strings.TrimSpace(spec), "row %s names a spec that is not there", r.id)
		}
	}
	for _, family := range families {
		for _, n := range family.apart {
			seen[fmt.Sprint(family.name, "-", n)] = true
		}
		for n := 1; n <= family.last; n++ {
			require.True(t, seen[fmt.Sprint(family.name, "-", n)], "row %s-%d is missing", family.name, n)
		}
	}
}

// testsIn are the names of the tests of a room, whatever they are built for.
func testsIn(t *testing.T, room string) map[string]bool {
	t.Helper()
	dir, ok := testRooms[room]
	if !ok {
		dir = room
	}
	names, err := testfuncs.List(dir, "Test")
	require.NoError(t, err)
	return names
}
