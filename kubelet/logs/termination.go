package logs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/container"
)

const (
	// MaxTerminationMessage is the size of the longest termination message, in bytes.
	MaxTerminationMessage = 4096
	// maxFallbackBytes and maxFallbackLines bound the part of the log that replaces a missing message.
	maxFallbackBytes       = 2048
	maxFallbackLines int64 = 80
	// fallbackWindow is how much of the log's end is searched for it, in bytes: enough for records of one byte each.
	fallbackWindow = 256 << 10
)

// TerminationMessage returns the message of a container that has ended: the runtime's message, and the content of the
// container's termination message file or, with the policy FallbackToLogsOnError and a failure, the end of its log. It
// is empty for a container that has not ended.
func TerminationMessage(ctx context.Context, s *container.ContainerStatus) string {
	if s.State != container.StateExited {
		return ""
	}
	message := readMessageFile(s)
	if message == "" && s.ExitCode != 0 && s.Reason != "ContainerCannotRun" &&
		s.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
		message = readLogTail(ctx, s.LogPath)
	}
	if message == "" || s.Message == "" {
		return s.Message + message
	}
	return s.Message + ": " + message
}

// readMessageFile reads the file that the container had mounted for its message.
func readMessageFile(s *container.ContainerStatus) string {
	if s.TerminationMessagePath == "" {
		return ""
	}
	wanted := s.TerminationMessagePath
	if !filepath.IsAbs(wanted) {
		wanted = "/" + wanted
	}
	for _, m := range s.Mounts {
		if m.ContainerPath != wanted {
			continue
		}
		message, err := readFileTail(m.HostPath, MaxTerminationMessage)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Sprintf("Error on reading termination log %s: %v", m.HostPath, err)
		}
		return message
	}
	return ""
}

// readFileTail reads the last bytes of a regular file. A container may have replaced the file, so neither its type nor
// its content is trusted.
func readFileTail(path string, limit int64) (string, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", errors.New("not a regular file")
	}
	content, err := io.ReadAll(io.NewSectionReader(file, max(info.Size()-limit, 0), limit))
	return lastText(content, limit), err
}

// lastText returns the end of the content as valid text of at most that many bytes: what stands for a byte that is none of a text is longer
// than the byte.
func lastText(content []byte, limit int64) string {
	text := strings.ToValidUTF8(string(content), "\uFFFD")
	text = text[max(len(text)-int(limit), 0):]
	for text != "" && !utf8.RuneStart(text[0]) {
		text = text[1:]
	}
	return text
}

// readLogTail reads the last lines of a log, at most maxFallbackBytes. Its cost does not depend on the size of the log. A log
// that was rotated shortly before its end goes on in the file before.
func readLogTail(ctx context.Context, path string) string {
	content, err := readLogEnd(ctx, path)
	if len(content) < maxFallbackBytes && (err == nil || errors.Is(err, fs.ErrNotExist)) {
		if before, beforeErr := readLogEnd(ctx, newestRotated(path)); beforeErr == nil {
			content, err = lastLines(append(before, content...)), nil
		}
	}
	if err != nil {
		return fmt.Sprintf("Error on reading termination message from logs: %v", err)
	}
	return lastText(content, maxFallbackBytes)
}

// newestRotated returns the file that was the log before the last rotation and that is not compressed yet; empty if there is
// none. The names of rotated files sort by age, see package rotate.
func newestRotated(path string) string {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return ""
	}
	for _, entry := range slices.Backward(entries) { // sorted by name
		name := entry.Name()
		if strings.HasPrefix(name, filepath.Base(path)+".") && !strings.HasSuffix(name, ".gz") && !strings.HasSuffix(name, ".tmp") {
			return filepath.Join(filepath.Dir(path), name)
		}
	}
	return ""
}

// lastLines returns the last lines of the content that fit into a message.
func lastLines(content []byte) []byte {
	content = content[max(len(content)-maxFallbackBytes, 0):]
	for at, lines := len(content)-1, int64(0); at > 0; at-- {
		if content[at-1] == '\n' {
			if lines++; lines == maxFallbackLines {
				return content[at:]
			}
		}
	}
	return content
}

func readLogEnd(ctx context.Context, path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open log file: %w", err)
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("stat log file %q: %w", path, err)
	}
	begin := max(info.Size()-fallbackWindow, 0)
	window := io.NewSectionReader(file, begin, info.Size()-begin)
	start, err := recordStart(window, begin == 0)
	if err != nil {
		return nil, fmt.Errorf("read the end of log file %q: %w", path, err)
	}
	records := io.NewSectionReader(file, begin+start, window.Size()-start)
	if start, err = tailStart(ctx, records, records.Size(), maxFallbackLines); err != nil {
		return nil, fmt.Errorf("read the end of log file %q: %w", path, err)
	}
	if _, err = records.Seek(start, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read the end of log file %q: %w", path, err)
	}
	end := &ring{size: maxFallbackBytes}
	f := &follower{path: path, reader: bufio.NewReader(records), writer: newRecordWriter(Options{}, end, end)}
	if err := f.drain(ctx); err != nil {
		return nil, err
	}
	return end.content, f.flush()
}

// recordStart returns the offset of the first record that begins in the window; 0 if there is none, because all of the window
// is of one record.
func recordStart(window *io.SectionReader, whole bool) (int64, error) {
	if whole {
		return 0, nil
	}
	block := make([]byte, tailBlock)
	for at := int64(0); at < window.Size(); at += tailBlock {
		n, err := window.ReadAt(block[:min(tailBlock, window.Size()-at)], at)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if i := bytes.IndexByte(block[:n], '\n'); i >= 0 && at+int64(i)+1 < window.Size() {
			return at + int64(i) + 1, nil
		}
	}
	return 0, nil
}

// ring keeps the last bytes that are written to it.
type ring struct {
	size    int
	content []byte
}

// Write implements io.Writer. It never fails.
func (r *ring) Write(p []byte) (int, error) {
	n := len(p)
	p = p[max(len(p)-r.size, 0):]
	if over := len(r.content) + len(p) - r.size; over > 0 {
		r.content = r.content[:copy(r.content, r.content[over:])]
	}
	r.content = append(r.content, p...)
	return n, nil
}
