package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-dev/berth/conformance/internal/suite"
)

// TestAnEarlierReportIsNotThatOfARunThatDidNotBegin stops a run before its suite begins, where an earlier run, perhaps of the other kubelet,
// has left its report.
func TestAnEarlierReportIsNotThatOfARunThatDidNotBegin(t *testing.T) {
	o := nodeOptions{native: true, scratch: t.TempDir(), kubelet: kubeletUpstream}
	logs := filepath.Join(o.scratch, "log", "e2e-node")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(logs, suite.ReportFile), "[{}]")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("interrupted"))
	if _, err := o.runInMachine(ctx, t.TempDir(), t.TempDir(), t.TempDir()); err == nil {
		t.Error("the earlier report is taken for that of this run")
	}
}
