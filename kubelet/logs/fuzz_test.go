package logs

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/container"
)

// FuzzRead reads any content that a full disk or a hostile runtime may leave: reading must not fail or read past the
// end, and the last lines must be the end of all lines.
func FuzzRead(f *testing.F) {
	f.Add([]byte(sample), int64(3))
	f.Add([]byte("2026-01-01T00:00:01Z stdout P\n\n \n"), int64(1))
	f.Add([]byte("2026-01-01T00:00:01Z stdout"), int64(0))
	f.Fuzz(func(t *testing.T, content []byte, n int64) {
		if n < 0 {
			return
		}
		path := filepath.Join(t.TempDir(), "0.log")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		var all, tail, others bytes.Buffer
		if err := Read(t.Context(), path, Options{}, &all, &others); err != nil {
			t.Fatal(err)
		}
		if all.Len()+others.Len() > len(content) {
			t.Fatalf("%d bytes were made of %d", all.Len()+others.Len(), len(content))
		}
		if err := Read(t.Context(), path, Options{TailLines: &n}, &tail, nil); err != nil {
			t.Fatal(err)
		}
		if !bytes.HasSuffix(all.Bytes(), tail.Bytes()) {
			t.Fatalf("the last %d lines %q are not the end of %q", n, tail.Bytes(), all.Bytes())
		}
	})
}

// FuzzTerminationMessage reads what a container has left as its message and as its log: the message has no more bytes than it may have,
// and is text.
func FuzzTerminationMessage(f *testing.F) {
	f.Add([]byte("done"), []byte(sample))
	f.Add(bytes.Repeat([]byte("a\xff"), MaxTerminationMessage), []byte{})
	f.Add([]byte{}, append([]byte("2026-01-01T00:00:01Z stdout F "), bytes.Repeat([]byte("\xffa"), maxFallbackBytes)...))
	f.Add([]byte{}, []byte("2026-01-01T00:00:01Z stderr P €\n\n2026-01-01T00:00:01Z stdout"))
	f.Fuzz(func(t *testing.T, message, log []byte) {
		dir := t.TempDir()
		s := &container.ContainerStatus{
			State: container.StateExited, ExitCode: 1, LogPath: filepath.Join(dir, "0.log"), TerminationMessagePath: "/dev/termination-log",
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			Mounts:                   []*runtimeapi.Mount{{ContainerPath: "/dev/termination-log", HostPath: filepath.Join(dir, "message")}},
		}
		for path, content := range map[string][]byte{s.LogPath: log, s.Mounts[0].HostPath: message} {
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, most := TerminationMessage(t.Context(), s), MaxTerminationMessage
		if len(message) == 0 {
			most = maxFallbackBytes
		}
		if len(got) > most || !utf8.ValidString(got) {
			t.Fatalf("a message of %d bytes, of which %d are too many: %q", len(got), len(got)-most, got)
		}
		if utf8.Valid(message) && len(message) > 0 && len(message) <= MaxTerminationMessage && got != string(message) {
			t.Fatalf("%q became %q", message, got)
		}
	})
}
