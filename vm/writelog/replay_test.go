package writelog

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const sector = 512

// logOf returns a log with the requests, and the position of each.
func logOf(requests ...request) (data []byte, positions []int64) {
	head := make([]byte, sector)
	binary.LittleEndian.PutUint64(head, magic)
	binary.LittleEndian.PutUint64(head[8:], version)
	binary.LittleEndian.PutUint32(head[24:], sector)
	for _, r := range requests {
		positions = append(positions, int64(len(head)))
		entry := make([]byte, sector)
		length := len(r.content)
		if r.flags&flagDiscard != 0 {
			length = r.discarded
		}
		for i, number := range []uint64{uint64(r.at), uint64(length / sector), r.flags, 0} {
			binary.LittleEndian.PutUint64(entry[8*i:], number)
		}
		head = append(append(head, entry...), r.content...)
	}
	return head, positions
}

// request is one to the sector at.
type request struct {
	at        int
	flags     uint64
	content   string
	discarded int
}

func sectors(letters string) (content string) {
	for _, letter := range letters {
		content += strings.Repeat(string(letter), sector)
	}
	return content
}

func openLog(t *testing.T, data []byte) (*Log, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "log")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return Open(path)
}

// newDisk returns a file as large as so many sectors, and what shows each of them as a letter.
func newDisk(t *testing.T, count int, like *os.File) (*os.File, func() string) {
	t.Helper()
	disk, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, disk.Close()) })
	require.NoError(t, disk.Truncate(int64(count*sector)))
	if like != nil {
		data, err := os.ReadFile(like.Name())
		require.NoError(t, err)
		_, err = disk.WriteAt(data, 0)
		require.NoError(t, err)
	}
	return disk, func() (letters string) {
		data, err := os.ReadFile(disk.Name())
		require.NoError(t, err)
		for part := range bytes.SplitSeq(bytes.ReplaceAll(data, []byte{0}, []byte{'.'}), nil) {
			letters += string(part)
		}
		var short strings.Builder
		for i := 0; i < len(letters); i += sector {
			short.WriteByte(letters[i])
		}
		return short.String()
	}
}

func always() bool { return true }
func never() bool  { return false }

func TestADiskKeepsWhatWasFlushed(t *testing.T) {
	data, positions := logOf(
		request{at: 0, content: sectors("ab")},
		request{at: 4, content: sectors("c")},
		request{flags: flagFlush},
		request{at: 1, content: sectors("x")},
		request{at: 3, flags: flagFUA, content: sectors("f")},
		request{at: 4, flags: flagDiscard, discarded: sector},
		request{flags: flagFlush},
	)
	log, err := openLog(t, data)
	require.NoError(t, err)
	defer log.Close()
	durable, content := newDisk(t, 6, nil)
	replay, moments := log.Replay(durable), log.Moments()
	require.Len(t, moments, 7)
	last := moments[6]
	for _, step := range []struct {
		name              string
		position          int64
		pending           int
		durable, all, few string
	}{
		{"before anything", positions[0], 0, "......", "......", "......"},
		{"one write has begun", positions[0] + 1, 1, "......", "ab....", "......"},
		{"before the flush", positions[2], 2, "......", "ab..c.", "......"},
		{"after the flush", positions[2] + 1, 0, "ab..c.", "ab..c.", "ab..c."},
		{"before the next", positions[6], 2, "ab..c.", "ax.f..", "ab.fc."},
		{"after all", last, 0, "ax.f..", "ax.f..", "ax.f.."},
	} {
		require.NoError(t, replay.Advance(step.position), step.name)
		require.Equal(t, step.durable, content(), step.name)
		require.Equal(t, step.pending, replay.Pending(), step.name)
		for _, cut := range []struct {
			keep func() bool
			want string
		}{{always, step.all}, {never, step.few}} {
			disk, content := newDisk(t, 6, durable)
			require.NoError(t, replay.Cut(disk, cut.keep), step.name)
			require.Equal(t, cut.want, content(), step.name)
		}
	}
}

func TestAPartOfARequestMayBeKept(t *testing.T) {
	data, _ := logOf(request{at: 0, content: sectors(strings.Repeat("a", chunk/sector) + strings.Repeat("b", chunk/sector) + "c")})
	log, err := openLog(t, data)
	require.NoError(t, err)
	defer log.Close()
	durable, _ := newDisk(t, 17, nil)
	replay := log.Replay(durable)
	require.NoError(t, replay.Advance(log.Moments()[0]))
	parts := 0
	disk, content := newDisk(t, 17, nil)
	require.NoError(t, replay.Cut(disk, func() bool { parts++; return parts != 2 }))
	require.Equal(t, 3, parts)
	require.Equal(t, "aaaaaaaa........c", content())
}

func TestALogThatIsCutOffEndsBefore(t *testing.T) {
	data, positions := logOf(request{at: 0, content: sectors("a")}, request{at: 1, content: sectors("b")})
	for size := positions[1]; size < int64(len(data)); size += sector / 2 {
		log, err := openLog(t, data[:size])
		require.NoError(t, err)
		require.Len(t, log.entries, 1, "%d bytes", size)
		require.NoError(t, log.Close())
	}
	clear(data[positions[1]:]) // a hole
	log, err := openLog(t, data)
	require.NoError(t, err)
	require.Len(t, log.entries, 1)
	require.NoError(t, log.Close())
}

func TestWhatIsNoLogIsRefused(t *testing.T) {
	data, positions := logOf(request{at: 0, content: sectors("a")})
	for name, damage := range map[string]func([]byte) []byte{
		"empty":         func([]byte) []byte { return nil },
		"no log":        func(data []byte) []byte { data[0] = 'x'; return data },
		"newer":         func(data []byte) []byte { data[8] = 2; return data },
		"no sectors":    func(data []byte) []byte { clear(data[24:28]); return data },
		"unknown flags": func(data []byte) []byte { data[positions[0]+16] = 64; return data },
		"too far":       func(data []byte) []byte { data[positions[0]+7] = 0xff; return data },
	} {
		_, err := openLog(t, damage(bytes.Clone(data)))
		require.Error(t, err, name)
	}
}
