package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2/types"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/conformance/internal/cluster"
)

// specName is the one spec of the fake suite.
const specName = "[sig-node] Pods run"

// newSuiteFixture are the programs of a run whose suite takes until it is interrupted, or, if it is whole, no time at all. They wait
// for a process that the signal's trap kills: a signal that comes just before a read lets that block for ever.
func newSuiteFixture(t *testing.T, whole bool) (o options, running machines) {
	t.Helper()
	bin := t.TempDir()
	state := types.SpecStatePassed
	wait := ""
	if !whole {
		state, wait = types.SpecStateInterrupted, "cat <'"+bin+"/never' &\ntrap 'kill $!' INT\n"+
			"echo yes >'"+bin+"/began'\nwait $!\n"
	}
	for _, name := range []string{"began", "never"} {
		if err := unix.Mkfifo(filepath.Join(bin, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	report, err := json.Marshal([]types.Report{{SpecReports: types.SpecReports{{
		LeafNodeType: types.NodeTypeIt, ContainerHierarchyTexts: []string{"[sig-node] Pods"}, LeafNodeText: "run", State: state,
	}}}})
	writeFile(t, filepath.Join(bin, "report.json"), string(report))
	own := filepath.Join(bin, "conformance")
	if err := errors.Join(err, os.Mkdir(own, 0o755)); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(own, "ginkgo"), "#!/bin/sh\n"+wait+"cp '"+bin+"/report.json' '"+bin+"/out/report.json'\n")
	writeFile(t, filepath.Join(bin, "berth"), "#!/bin/sh\n[ \"$1\" = up ] || exit 0\ncat <'"+bin+"/never' &\n"+
		"trap 'kill $!; exit 0' INT\necho Kubernetes is ready after 1 s\nwait $!\n")
	o = options{bin: bin, out: filepath.Join(bin, "out"), report: filepath.Join(bin, "report.md"), parallel: 1, attempts: 1,
		timeout: time.Hour}
	if _, _, err := o.dirs(); err != nil {
		t.Fatal(err)
	}
	running.Cluster, err = cluster.Start(t.Context(), cluster.Config{Bin: bin, DataDir: bin, APIPort: 1, PodCIDR: "10.1.0.0/16",
		ServiceCIDR: "10.2.0.0/16", Log: filepath.Join(bin, "berth.log"), Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := running.Stop(); err != nil {
			t.Error(err)
		}
	})
	return o, running
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

func requireContent(t *testing.T, path, text string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(data), text) {
		t.Errorf("%s has not %q (%v):\n%s", path, text, err, data)
	}
}

func TestAnInterruptedRunLeavesTheReport(t *testing.T) {
	o, running := newSuiteFixture(t, false)
	const before = "the report of a complete run"
	writeFile(t, o.report, before)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	ended := make(chan error, 1)
	go func() { ended <- runAndReport(ctx, o, running, o.bin, o.out, []string{specName}, nil) }()
	if _, err := os.ReadFile(filepath.Join(o.bin, "began")); err != nil { // which waits until it has
		t.Fatal(err)
	}
	cancel(errors.New("hangup"))
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "hangup") {
		t.Errorf("got %v", err)
	}
	if data, err := os.ReadFile(o.report); err != nil || string(data) != before {
		t.Errorf("the report is another (%v):\n%s", err, data)
	}
	requireContent(t, filepath.Join(o.out, interruptedReport), "hangup")
}

func TestASuiteWithoutAReportSaysWhy(t *testing.T) {
	o, running := newSuiteFixture(t, true)
	writeFile(t, filepath.Join(o.bin, "conformance", "ginkgo"), "#!/bin/sh\nexit 3\n")
	err := runAndReport(t.Context(), o, running, o.bin, o.out, []string{specName}, nil)
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || strings.Contains(err.Error(), "%!") {
		t.Errorf("got %v", err)
	}
}

func TestAWholeRunReplacesTheReport(t *testing.T) {
	o, running := newSuiteFixture(t, true)
	writeFile(t, o.report, "the report of an earlier run")
	if err := runAndReport(t.Context(), o, running, o.bin, o.out, []string{specName}, nil); err != nil {
		t.Error(err)
	}
	requireContent(t, o.report, "**1 passed, 0 failed, 0 not run.**")
	if found, _ := filepath.Glob(o.bin + "/*.new"); len(found) > 0 {
		t.Errorf("left: %v", found)
	}
}

// TestAResumedRunRunsWhatIsLeft has the results of an earlier run, of which one spec passed and one did not run.
func TestAResumedRunRunsWhatIsLeft(t *testing.T) {
	const passed, foreign = "[sig-node] Pods passed before", "[sig-node] Pods of another list"
	o, running := newSuiteFixture(t, true)
	o.resume = true
	expected := []string{passed, specName}
	if _, err := o.earlier(o.out, expected); err == nil || !strings.Contains(err.Error(), "no results") {
		t.Errorf("got %v", err)
	}
	writeFile(t, filepath.Join(o.out, resultsFile), `{"name": "`+passed+`", "state": "passed", "area": "node: Pods", "date": "2026-11-01"}`+"\n")
	earlier, err := o.earlier(o.out, expected)
	if err != nil {
		t.Fatal(err)
	}
	if err := runAndReport(t.Context(), o, running, o.bin, o.out, expected, earlier); err != nil {
		t.Error(err)
	}
	requireContent(t, o.report, "**2 passed, 0 failed, 0 not run.** Of 2 specs that must pass")
	if _, err := o.earlier(o.out, expected); err == nil || !strings.Contains(err.Error(), "each spec of the list has passed") {
		t.Errorf("got %v", err)
	}
	if _, err := o.earlier(o.out, append(expected, foreign)); err != nil {
		t.Error(err)
	}
}

// TestAReportThatCannotBeWrittenLeavesTheOldOne has the writing fail halfway.
func TestAReportThatCannotBeWrittenLeavesTheOldOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.md")
	writeFile(t, path, "old")
	broken := errors.New("disk full")
	if err := replaceFile(path, func(w io.Writer) error { _, err := w.Write([]byte("ne")); return errors.Join(err, broken) }); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	requireContent(t, path, "old")
	if found, _ := filepath.Glob(path + ".*"); len(found) > 0 {
		t.Errorf("left: %v", found)
	}
}

// TestSecondHangupKillsNothing sends the signals of one closed terminal, and then a second Ctrl-C.
func TestSecondHangupKillsNothing(t *testing.T) {
	came := make(chan os.Signal) // what is sent has been dealt with when the next is taken
	ctx, kill := stopContext(came)
	came <- syscall.SIGHUP
	<-ctx.Done()
	if cause := context.Cause(ctx); cause.Error() != "hangup" {
		t.Errorf("got %v", cause)
	}
	if code := exitCode(ctx, context.Cause(ctx)); code != 128+int(syscall.SIGHUP) {
		t.Errorf("exit code %d", code)
	}
	for range 3 {
		select {
		case came <- syscall.SIGHUP:
		case <-kill:
			t.Fatal("a second hangup has the suite killed")
		}
	}
	came <- syscall.SIGTERM
	<-kill
}

// helperProcessEnv makes TestEnds the run that TestTheReaderMayEndFirst interrupts.
const helperProcessEnv = "CONFORMANCE_TEST_ENDS"

func TestEnds(t *testing.T) {
	if os.Getenv(helperProcessEnv) == "" {
		t.Skip("TestTheReaderMayEndFirst runs it")
	}
	came := make(chan os.Signal, 1)
	signal.Notify(came, syscall.SIGINT)
	ctx, _ := stopContext(came)
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	logf("ending the cluster")
}

// TestTheReaderMayEndFirst is Ctrl-C on `make conformance | tee`.
func TestTheReaderMayEndFirst(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestEnds$")
	cmd.Env, cmd.Stdout = append(os.Environ(), helperProcessEnv+"=yes"), write
	if err := errors.Join(read.Close(), cmd.Run(), write.Close()); err != nil {
		t.Errorf("it ended by %v", err)
	}
}
