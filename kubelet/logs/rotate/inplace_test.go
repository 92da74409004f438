package rotate_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/kubelet/logs/rotate"
)

// TestLogOfAProcessThatKeepsItsFileOpen has a process append to its log, as fast as it can: the files stay within their number and
// a few times the limit, and the lines that are left are whole and in order.
func TestLogOfAProcessThatKeepsItsFileOpen(t *testing.T) {
	const limit, files = 1 << 20, 3
	path := filepath.Join(t.TempDir(), "p.log")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	defer file.Close()
	rotator, err := rotate.New(rotate.Deps{}, rotate.Config{MaxSize: limit, MaxFiles: files, Period: never, InPlace: true})
	require.NoError(t, err)
	rotator.SetLogs("up", []rotate.Log{{ContainerID: "p", Path: path, InPlace: true}})
	var group sync.WaitGroup
	ctx := t.Context()
	group.Go(func() { _ = rotator.Start(ctx) })
	t.Cleanup(group.Wait)

	rotated := func() int { return len(names(t, filepath.Dir(path))) - 1 }
	largest, lines := int64(0), 0
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline) && lines < 40_000; {
		for range 200 {
			_, err := fmt.Fprintf(file, "%08d %s\n", lines, strings.Repeat("x", 200))
			require.NoError(t, err)
			lines++
		}
		info, err := file.Stat()
		require.NoError(t, err)
		largest = max(largest, info.Size())
		time.Sleep(2 * time.Millisecond) // 20 MB/s
	}
	require.Less(t, largest, int64(16*limit))
	waitFor(t, func() bool {
		info, err := file.Stat()
		return err == nil && info.Size() < limit && rotated() > 0 && rotated() < files
	})
	// The old files and the log are one text.
	var found []string
	waitFor(t, func() bool {
		found, err = filepath.Glob(path + ".*")
		require.NoError(t, err)
		return len(found) == files-1 && strings.HasSuffix(found[0], ".gz") != strings.HasSuffix(found[1], ".gz")
	})
	slices.SortFunc(found, func(a, b string) int {
		return strings.Compare(strings.TrimSuffix(a, ".gz"), strings.TrimSuffix(b, ".gz"))
	})
	var text bytes.Buffer
	for _, name := range append(found, path) {
		content, err := os.ReadFile(name)
		require.NoError(t, err)
		if strings.HasSuffix(name, ".gz") {
			zip, err := gzip.NewReader(bytes.NewReader(content))
			require.NoError(t, err)
			content, err = io.ReadAll(zip)
			require.NoError(t, err)
		}
		text.Write(content)
	}
	all := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")[1:] // the first may be torn
	for i, line := range all {
		require.Equal(t, fmt.Sprintf("%08d", lines-len(all)+i), line[:8])
	}
}
