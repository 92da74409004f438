package nodemachine_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// isolated runs a script as the machine of isolate.sh and returns what it has in its directory of logs, by name. Once the
// script has made the file started there, the signals are sent to isolate.sh, one after the other. The test is skipped where
// isolate.sh does not work.
func isolated(t *testing.T, machine string, signals ...syscall.Signal) (logs string, code int) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("isolate.sh needs root")
	}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		t.Skip("isolate.sh needs cgroup v1")
	}
	share, scratch := t.TempDir(), filepath.Join(t.TempDir(), "scratch")
	write(t, filepath.Join(share, "machine.sh"), machine)
	cmd := exec.CommandContext(t.Context(), "sh", "isolate.sh", share, scratch)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	logs = filepath.Join(scratch, "log")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // its code says how it ended
	}()
	for _, signal := range signals {
		waitForFile(t, filepath.Join(logs, "started"), ended)
		if err := os.Remove(filepath.Join(logs, "started")); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
	}
	<-ended
	return logs, cmd.ProcessState.ExitCode()
}

// waitForFile waits until the file exists or the process has ended.
func waitForFile(t *testing.T, path string, ended <-chan struct{}) {
	t.Helper()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		if _, err := os.Stat(path); err == nil {
			return
		}
		select {
		case <-ticker.C:
		case <-ended:
			t.Fatalf("isolate.sh ended before %s was made", filepath.Base(path))
		}
	}
}

func TestInterruptedSuiteWritesItsReport(t *testing.T) {
	// As ginkgo's command does, the script leaves it to the terminal to interrupt its child, and waits for it.
	logs, code := isolated(t, `
		trap : INT
		env --default-signal=INT sh -c "
			trap 'echo report > /var/log/report; exit 3' INT
			echo > /var/log/started
			while :; do sleep 0.1; done" &
		child=$!
		until wait $child; code=$?; [ $code -lt 128 ]; do :; done
		exit $code
	`, syscall.SIGTERM)
	if report, err := os.ReadFile(filepath.Join(logs, "report")); err != nil || strings.TrimSpace(string(report)) != "report" {
		t.Errorf("the interrupted suite left the report %q, %v", report, err)
	}
	if code != 3 {
		t.Errorf("exit code %d, want 3, which is the suite's", code)
	}
}

func TestSecondSignalEndsASuiteThatIgnoresTheFirst(t *testing.T) {
	logs, code := isolated(t, `
		trap 'echo > /var/log/started' INT
		echo > /var/log/started
		while :; do sleep 0.1; done
	`, syscall.SIGTERM, syscall.SIGTERM)
	if code != 128+int(syscall.SIGKILL) {
		t.Errorf("exit code %d, want that of SIGKILL", code)
	}
	if _, err := os.Stat(logs); err != nil {
		t.Error(err)
	}
}

func TestIsolatedSuiteReturnsItsCode(t *testing.T) {
	if _, code := isolated(t, "exit 7"); code != 7 {
		t.Errorf("exit code %d, want 7", code)
	}
}
