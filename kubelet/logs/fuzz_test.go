package logs

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
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
