package cpulist_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/cpulist"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{"": "", "0": "0", "3,1-2": "1-3", "0-8191": "0-8191"} {
		have, err := cpulist.Parse(text)
		require.NoError(t, err, text)
		require.Equal(t, want, have.String())
	}
	for _, text := range []string{"x", "1-", "-1", "2-1", "0-9999999999", "8192", "0-99999999999999999999", strings.Repeat("1,", 1<<20)} {
		_, err := cpulist.Parse(text)
		require.Error(t, err, "%.20s", text)
	}
}

// FuzzParse parses arbitrary lists: what is accepted has CPUs that a machine can have, and is read again as it is written.
func FuzzParse(f *testing.F) {
	f.Add("0-3,8")
	f.Add("0-4294967295")
	f.Add("+1--2,")
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1<<10 {
			return
		}
		set, err := cpulist.Parse(text)
		if err != nil {
			require.True(t, set.IsEmpty())
			return
		}
		require.LessOrEqual(t, set.Size(), 8192)
		for _, cpu := range set.UnsortedList() {
			require.GreaterOrEqual(t, cpu, 0)
		}
		again, err := cpulist.Parse(set.String())
		require.NoError(t, err)
		require.True(t, set.Equals(again))
	})
}
