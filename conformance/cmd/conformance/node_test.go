package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
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

// TestOnlyWhatIsOnByDefaultIsExpected adds the specs that passed with upstream's kubelet to a list with a comment.
func TestOnlyWhatIsOnByDefaultIsExpected(t *testing.T) {
	list := filepath.Join(t.TempDir(), "list.txt")
	writeFile(t, list, "# of a machine\nb\n")
	names, err := addPassed(list, suite.Records{
		{Name: "a", State: suite.StatePassed},
		{Name: "c", State: "failed"},
		{Name: "[Alpha] [Feature:OffByDefault]", State: suite.StatePassed},
	})
	if err != nil || !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("got %q, %v", names, err)
	}
	if data, err := os.ReadFile(list); err != nil || string(data) != "# of a machine\na\nb\n" {
		t.Errorf("got %q, %v", data, err)
	}
	none := filepath.Join(t.TempDir(), "none.txt")
	if names, err := addPassed(none, nil); err != nil || len(names) > 0 {
		t.Errorf("got %q, %v", names, err)
	}
	if _, err := os.Stat(none); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a list without specs: %v", err)
	}
}
