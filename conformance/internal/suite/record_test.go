package suite_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onsi/ginkgo/v2/types"

	"github.com/berth-dev/berth/conformance/internal/suite"
)

func TestRecordsAccumulateOverRuns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.jsonl")
	all := []string{podsPass, podsFail, secretSkip}
	never := func(suite.Record) bool { return false }

	records, err := suite.ReadRecords(path)
	if err != nil || len(records.Pending(all, never)) != len(all) {
		t.Fatalf("without a file: %v, %v", records, err)
	}
	first := report()
	first.SpecReports[2].State = types.SpecStateInterrupted // the run ended here
	first.SpecReports[3].State, first.SpecReports[3].Failure.Message = types.SpecStateTimedout, "A suite timeout occurred"
	records = records.Add(suite.Evaluate(first, nil), "kubelet v1", "a machine")
	if pending := records.Pending(all, never); !slices.Equal(pending, []string{podsFail, secretSkip}) {
		t.Fatalf("after the first run these are pending: %q", pending)
	}

	var text strings.Builder
	if err := records.Write(&text); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if records, err = suite.ReadRecords(path); err != nil {
		t.Fatal(err)
	}
	second := report()
	second.SpecReports = slices.Delete(second.SpecReports, 1, 2)
	records = records.Add(suite.Evaluate(second, nil), "kubelet v2", "a machine")
	if pending := records.Pending(all, never); len(pending) > 0 {
		t.Errorf("after the second run these are pending: %q", pending)
	}
	records[0].Date, records[1].Date, records[2].Date = "2026-01-02", "2026-01-02", "2026-01-01"
	oldest := records[2].Name
	again := records.Pending(append([]string{"new"}, all...), func(suite.Record) bool { return true })
	if len(again) != 4 || again[0] != "new" || again[1] != oldest {
		t.Errorf("to run again, the oldest first: %q", again)
	}
	failed := records.Pending(all, func(r suite.Record) bool { return r.State == suite.StateFailed })
	if !slices.Equal(failed, []string{podsFail}) {
		t.Errorf("to run again: %q", failed)
	}

	result := records.Result(append(all, "[sig-node] left out"), append(all, "[sig-node] left out", "[sig-node] unknown"))
	if result.Ran != 2 || len(result.Specs) != 3 || len(result.Regressed) != 1 || result.Regressed[0].Name != podsFail ||
		!slices.Equal(result.Missing, []string{secretSkip, "[sig-node] left out"}) || !slices.Equal(result.Unknown, []string{"[sig-node] unknown"}) {
		t.Errorf("both runs together: %+v", result)
	}
	if subjects := records.Subjects(); subjects["kubelet v1, a machine"] != 1 || subjects["kubelet v2, a machine"] != 2 {
		t.Errorf("subjects: %v", subjects)
	}
}

func TestReadRecordsNamesBrokenLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.jsonl")
	if err := os.WriteFile(path, []byte("{}\n{\"name\":\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := suite.ReadRecords(path); err == nil || !strings.Contains(err.Error(), path+", line 2") {
		t.Errorf("got %v, want the line named", err)
	}
}

func TestListRunsNothingAndNamesWhatIsSelected(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "suite.test")
	script := `#!/bin/sh
for arg; do
	case $arg in
	--ginkgo.json-report=*) report=${arg#*=} ;;
	--ginkgo.dry-run) dry=yes ;;
	--ginkgo.focus='a b' | --ginkgo.skip=c) flags="$flags $arg" ;;
	esac
done
[ "$dry" = yes ] && [ "$flags" = " --ginkgo.focus=a b --ginkgo.skip=c" ] || { echo "arguments: $*"; exit 1; }
cat >"$report" <<'JSON'
[{"SpecReports": [
	{"LeafNodeType": "BeforeSuite", "State": "passed"},
	{"LeafNodeType": "It", "LeafNodeText": "selected", "State": "passed"},
	{"LeafNodeType": "It", "LeafNodeText": "left out", "State": "skipped"}
]}]
JSON
`
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	known, selected, err := suite.List(t.Context(), program, filepath.Join(dir, "list"), "a b", "c")
	if err != nil || !slices.Equal(known, []string{"selected", "left out"}) || !slices.Equal(selected, []string{"selected"}) {
		t.Errorf("got %q and %q, %v", known, selected, err)
	}
	if _, _, err := suite.List(t.Context(), program, filepath.Join(dir, "list"), "", ""); err == nil || !strings.Contains(err.Error(), "arguments:") {
		t.Errorf("a program that fails: %v", err)
	}
}
