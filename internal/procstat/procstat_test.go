package procstat_test

import (
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/procstat"
)

func TestFields(t *testing.T) {
	fields := procstat.Fields([]byte("7 (a) b (c) S 1 7 7 34816 7 4194304 0 0 0 0 0 0 0 0 0 20 0 9 0 4321 0\n"))
	require.Equal(t, "S", fields[procstat.State])
	require.Equal(t, "1", fields[procstat.Parent])
	require.Equal(t, "34816", fields[procstat.Terminal])
	require.Empty(t, procstat.Fields(nil))

	stat, err := os.ReadFile("/proc/self/stat")
	require.NoError(t, err)
	require.Equal(t, strconv.Itoa(os.Getppid()), procstat.Fields(stat)[procstat.Parent])
}
