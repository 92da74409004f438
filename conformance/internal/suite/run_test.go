package suite_test

import (
	"bufio"
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-dev/berth/conformance/internal/suite"
)

// TestKillEndsInterruptedSuite has a ginkgo that only says that it was interrupted.
func TestKillEndsInterruptedSuite(t *testing.T) {
	bin := t.TempDir()
	script := "#!/bin/sh\ntrap 'echo interrupted' INT\necho running\nwhile :; do sleep 1000 & wait; done\n"
	if err := os.WriteFile(filepath.Join(bin, "ginkgo"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	output, progress := io.Pipe()
	kill, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := suite.Run(ctx, suite.Config{Bin: bin, OutDir: bin, Parallel: 1, Progress: progress, Kill: kill})
		_ = progress.Close()
		ended <- err
	}()
	lines := bufio.NewScanner(output)
	for _, step := range []struct {
		says string
		then func()
	}{{"running", cancel}, {"interrupted", func() { close(kill) }}} {
		if !lines.Scan() || lines.Text() != step.says {
			t.Fatalf("got %q, want %q", lines.Text(), step.says)
		}
		step.then()
	}
	for lines.Scan() {
		t.Logf("then it printed %q", lines.Text())
	}
	if err := <-ended; err == nil {
		t.Error("a suite without a report must be an error")
	}
}
