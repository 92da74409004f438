package logs

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/container"
)

// allocated returns how many bytes fn allocates.
func allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// failed returns the status of a container that ended with a failure and has the log.
func failed(path string) *container.ContainerStatus {
	return &container.ContainerStatus{
		State: container.StateExited, ExitCode: 1, LogPath: path,
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
}

// partialRecords are records of a line that does not end, as containerd writes them: 16 KiB each.
func partialRecords(bytesInAll int) []byte {
	record := "2026-01-01T00:00:01.000000001Z stdout P " + strings.Repeat("x", 16<<10) + "\n"
	return []byte(strings.Repeat(record, bytesInAll/len(record)+1))
}

// TestTerminationMessageOfAHugeLog makes the message of a log of 1 GiB, whose end is one line without an end.
func TestTerminationMessageOfAHugeLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	file, err := os.Create(path)
	require.NoError(t, err)
	defer file.Close()
	const size = 1 << 30
	require.NoError(t, file.Truncate(size)) // sparse: no newline before the last records
	records := partialRecords(32 << 20)
	_, err = file.WriteAt(records, size-int64(len(records)))
	require.NoError(t, err)

	var message string
	used := allocated(func() { message = TerminationMessage(t.Context(), failed(path)) })
	require.Equal(t, strings.Repeat("x", maxFallbackBytes), message)
	require.Less(t, used, uint64(1<<20), "bytes allocated")
}

// TestTerminationMessageOfShortRecords makes the message of records that hold one byte each.
func TestTerminationMessageOfShortRecords(t *testing.T) {
	path := write(t, strings.Repeat("2026-01-01T00:00:01.000000001Z stdout P x\n", 1<<16))
	require.Equal(t, strings.Repeat("x", maxFallbackBytes), TerminationMessage(t.Context(), failed(path)))
}

// TestTerminationMessageOfOneRecord makes the message of a record that is longer than what is searched.
func TestTerminationMessageOfOneRecord(t *testing.T) {
	path := write(t, "2026-01-01T00:00:01.000000001Z stdout F "+strings.Repeat("y", 4*fallbackWindow)+"\n")
	require.Equal(t, strings.Repeat("y", maxFallbackBytes-1)+"\n", TerminationMessage(t.Context(), failed(path)))
}

// TestRecordOfAnyLength reads a record of 64 MiB in bounded memory.
func TestRecordOfAnyLength(t *testing.T) {
	const length = 64 << 20
	path := write(t, line("one")+"2026-01-01T00:00:01Z stderr P "+strings.Repeat("z", length)+"\n"+line("two"))
	var stdout bytes.Buffer
	var others counter
	used := allocated(func() { require.NoError(t, Read(t.Context(), path, Options{}, &stdout, &others)) })
	require.Equal(t, "one\ntwo\n", stdout.String())
	require.EqualValues(t, length, others)
	require.Less(t, used, uint64(1<<20), "bytes allocated")
}

// counter counts what is written to it.
type counter int64

func (c *counter) Write(p []byte) (int, error) { *c += counter(len(p)); return len(p), nil }

// TestTerminationMessageOfARotatedLog makes the message of logs that were rotated shortly before the end.
func TestTerminationMessageOfARotatedLog(t *testing.T) {
	record := func(text string) string { return "2026-01-01T00:00:01.000000001Z stdout F " + text + "\n" }
	many := strings.Repeat(record("old"), 100)
	for name, test := range map[string]struct {
		current, rotated string
		missing          bool
		want             string
	}{
		"nothing since":      {"", record("one") + record("two"), false, "one\ntwo\n"},
		"not reopened yet":   {"", record("one"), true, "one\n"},
		"goes on":            {record("three"), record("one") + record("two"), false, "one\ntwo\nthree\n"},
		"80 lines in all":    {record("new"), many, false, strings.Repeat("old\n", 79) + "new\n"},
		"one line":           {"", string(partialRecords(64 << 10)), false, strings.Repeat("x", maxFallbackBytes)},
		"enough in the last": {string(partialRecords(64 << 10)), many, false, strings.Repeat("x", maxFallbackBytes)},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, test.current)
			if test.missing {
				require.NoError(t, os.Remove(path))
			}
			require.NoError(t, os.WriteFile(path+".20260101-000000.gz", []byte("older"), 0o600))
			require.NoError(t, os.WriteFile(path+".20260101-000001", []byte(record("older")), 0o600))
			require.NoError(t, os.WriteFile(path+".20260101-000002", []byte(test.rotated), 0o600))
			require.NoError(t, os.WriteFile(path+".20260101-000003.tmp", []byte("half"), 0o600))
			require.Equal(t, test.want, TerminationMessage(t.Context(), failed(path)))
		})
	}
}
