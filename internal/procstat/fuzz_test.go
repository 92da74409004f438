package procstat_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/procstat"
)

// FuzzFields splits the line of a process of an arbitrary name, which has chosen it: the fields are those after the name.
func FuzzFields(f *testing.F) {
	f.Add("sh", "S 1 2 3")
	f.Add(") R 0 (", "Z 7")
	f.Add("a b\n\x00", "")
	f.Fuzz(func(t *testing.T, name, rest string) {
		rest = strings.ReplaceAll(rest, ")", "") // the kernel writes none after the name
		require.Equal(t, strings.Fields(rest), procstat.Fields([]byte("12 ("+name+") "+rest+"\n")))
	})
}
