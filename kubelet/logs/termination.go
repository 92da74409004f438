package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/container"
)

const (
	// maxTerminationMessage is the size of the longest termination message, in bytes.
	maxTerminationMessage = 4096
	// maxFallbackBytes and maxFallbackLines bound the part of the log that replaces a missing message.
	maxFallbackBytes       = 2048
	maxFallbackLines int64 = 80
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
		message, err := readFileTail(m.HostPath, maxTerminationMessage)
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
	return strings.ToValidUTF8(string(content), "\uFFFD"), err
}

// readLogTail reads the last lines of a log.
func readLogTail(ctx context.Context, path string) string {
	lines := maxFallbackLines
	var b bytes.Buffer
	if err := Read(ctx, path, Options{TailLines: &lines}, &b, &b); err != nil {
		return fmt.Sprintf("Error on reading termination message from logs: %v", err)
	}
	content := b.Bytes()
	content = content[max(len(content)-maxFallbackBytes, 0):]
	return strings.ToValidUTF8(string(content), "\uFFFD")
}
