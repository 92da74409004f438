package faulttest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// every is the share of the faults that Run injects.
var every = flag.Int("fault-every", 7, "inject one of so many faults; 1: all of them (make syscall-faults)")

// The variables of the process that a step runs in: its scenario and the directory.
const (
	scenarioVariable = "BERTH_FAULTTEST_SCENARIO"
	dirVariable      = "BERTH_FAULTTEST_DIR"
)

// marker is a path that the process looks up right before the step: calls before that are those of its start.
const marker = "/berth-faulttest-begins"

// failed is the exit code of a process whose step returned an error.
const failed = 3

func init() {
	if os.Getenv(scenarioVariable) != "" {
		runtime.LockOSThread() // main stays on the first thread, which is the one that strace counts
	}
}

// A Scenario is a step that replaces state on the disk.
type Scenario struct {
	Name string
	// Prepare makes an empty directory hold the state before the step.
	Prepare func(dir string) error
	// Act does the step as production does, from the start of what owns the state on. It must use no other goroutine for that.
	Act func(dir string) error
	// State returns what a reader finds in the directory. It must not change anything.
	State func(dir string) (string, error)
	// Old and New are what State returns before and after the step. Each other state, and an error, is damage.
	Old, New string
}

// Main runs the step of one of the scenarios and ends the process, if Run has started it. Else it does nothing.
func Main(scenarios ...Scenario) {
	name := os.Getenv(scenarioVariable)
	if name == "" {
		return
	}
	at := slices.IndexFunc(scenarios, func(s Scenario) bool { return s.Name == name })
	if at < 0 {
		panic("faulttest: no scenario " + name)
	}
	_, _ = os.Stat(marker) // it does not exist
	if err := scenarios[at].Act(os.Getenv(dirVariable)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(failed)
	}
	os.Exit(0)
}

// errnos are the errors that a call may fail with: the disk is full, the quota is used up, the device fails, the file system is read-only,
// the process has no descriptors left.
var errnos = map[string][]string{
	"openat": {"ENOSPC", "EDQUOT", "EIO", "EROFS", "EMFILE"}, "write": {"ENOSPC", "EDQUOT", "EIO"}, "pwrite64": {"ENOSPC", "EDQUOT", "EIO"},
	"read": {"EIO"}, "pread64": {"EIO"}, "getdents64": {"EIO"}, "newfstatat": {"EIO"}, "fstat": {"EIO"},
	"fsync": {"ENOSPC", "EDQUOT", "EIO"}, "fdatasync": {"ENOSPC", "EDQUOT", "EIO"}, "ftruncate": {"ENOSPC", "EIO"}, "fallocate": {"ENOSPC", "EDQUOT", "EIO"},
	"rename": {"ENOSPC", "EDQUOT", "EIO", "EROFS"}, "renameat": {"ENOSPC", "EDQUOT", "EIO", "EROFS"}, "renameat2": {"ENOSPC", "EDQUOT", "EIO", "EROFS"},
	"linkat": {"ENOSPC", "EDQUOT", "EIO", "EROFS"}, "symlinkat": {"ENOSPC", "EDQUOT", "EIO", "EROFS"}, "mkdirat": {"ENOSPC", "EDQUOT", "EIO", "EROFS"},
	"mount": {"EIO", "ENOSPC"}, "umount2": {"EBUSY"},
	"unlinkat": {"EIO", "EROFS"}, "fchmod": {"EIO", "EROFS"}, "fchmodat": {"EIO", "EROFS"}, "close": {"EIO"},
}

// errnos returns the errors that the call may fail with.
func (c call) errnos() []string {
	if c.name == "openat" && strings.Contains(c.line, "O_RDONLY") && !strings.Contains(c.line, "O_CREAT") {
		return []string{"EIO", "EMFILE"} // it needs no space
	}
	return errnos[c.name]
}

// passing are the errors that end by themselves, or when something is deleted: no file is damaged because of them.
var passing = []string{"ENOSPC", "EDQUOT", "EROFS", "EMFILE"}

// call is one system call of a step: the nth of its name since the process began.
type call struct {
	name string
	nth  int
	line string
}

// Run injects each fault into the step, and checks that the state is the one before or the one after, the latter if the step succeeded;
// that what fails for a while sets nothing aside; and that the step succeeds once the fault is gone, without leaving anything.
func Run(t *testing.T, s Scenario) {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace is not installed (make deps)")
	}
	calls := s.trace(t, strace)
	number, injected := 0, 0
	for _, c := range calls {
		for _, errno := range c.errnos() {
			if number++; number%*every != 0 {
				continue
			}
			injected++
			s.inject(t, strace, c, errno)
		}
	}
	t.Logf("%s: %d of %d faults of %d system calls", s.Name, injected, number, len(calls))
}

// trace returns the system calls of the step.
func (s Scenario) trace(t *testing.T, strace string) []call {
	t.Helper()
	dir, log := s.prepared(t), filepath.Join(t.TempDir(), "trace")
	out, err := s.run(t, strace, dir, "-o", log, "-e", "trace="+strings.Join(names(), ","))
	if err != nil && strings.Contains(out, "PTRACE_TRACEME: Operation not permitted") {
		t.Skipf("strace may not trace here: %s", out)
	}
	if err != nil {
		t.Fatalf("%s fails without a fault: %v: %s", s.Name, err, out)
	}
	if state, err := s.State(dir); err != nil || state != s.New {
		t.Fatalf("%s leads to %q, %v without a fault: want %q", s.Name, state, err, s.New)
	}
	data, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	begun, count := false, make(map[string]int)
	var calls []call
	for line := range strings.Lines(string(data)) {
		name, _, ok := strings.Cut(line, "(")
		if !ok || errnos[name] == nil {
			continue
		}
		count[name]++
		if begun {
			calls = append(calls, call{name, count[name], strings.TrimSpace(line)})
		}
		begun = begun || strings.Contains(line, marker)
	}
	if len(calls) == 0 {
		t.Fatalf("%s: strace saw no system call of the step:\n%s", s.Name, data)
	}
	return calls
}

// inject runs the step with one fault.
func (s Scenario) inject(t *testing.T, strace string, c call, errno string) {
	t.Helper()
	fault := fmt.Sprintf("%s: %s at %s", s.Name, errno, c.line)
	dir := s.prepared(t)
	out, err := s.run(t, strace, dir, "-o", "/dev/null", "-e", "trace="+c.name, "-e", fmt.Sprintf("inject=%s:error=%s:when=%d", c.name, errno, c.nth))
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != failed) {
		t.Errorf("%s: the process ended with %v:\n%s", fault, err, out)
		return
	}
	aside := find(dir, ".damaged")
	if len(aside) > 0 && !slices.Contains(passing, errno) { // the file could not be read: it is kept, and its object begins anew
		if err := s.Act(dir); err != nil {
			t.Errorf("%s: the step after it: %v", fault, err)
		}
		_ = os.RemoveAll(dir)
		return
	}
	state, stateErr := s.State(dir)
	switch {
	case stateErr != nil || state != s.Old && state != s.New:
		t.Errorf("%s: the state is %q, %v; the step: %v %s", fault, state, stateErr, err, out)
	case err == nil && state != s.New:
		t.Errorf("%s: the step claims to have succeeded, and the state is the one before", fault)
	case err != nil && strings.TrimSpace(out) == "":
		t.Errorf("%s: the error says nothing", fault)
	}
	if len(aside) > 0 {
		t.Errorf("%s: %v is set aside, although nothing is damaged", fault, aside)
	}
	if err := s.Act(dir); err != nil {
		t.Errorf("%s: the step after it: %v", fault, err)
	}
	if state, err := s.State(dir); err != nil || state != s.New {
		t.Errorf("%s: the step after it leads to %q, %v", fault, state, err)
	}
	// What could not be removed is as much as a crash leaves.
	if found := find(dir, ".berth-tmp-"); len(found) > 0 && c.name != "unlinkat" {
		t.Errorf("%s: %v stays after the next step", fault, found)
	}
	_ = os.RemoveAll(dir) // hundreds of them would fill the directory for temporary files
}

// prepared returns a directory with the state before the step.
func (s Scenario) prepared(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(t.TempDir(), "state-")
	if err == nil {
		err = s.Prepare(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	if state, err := s.State(dir); err != nil || state != s.Old {
		t.Fatalf("%s begins with %q, %v: want %q", s.Name, state, err, s.Old)
	}
	return dir
}

// run runs this test's program under strace, which follows its first thread only.
func (s Scenario) run(t *testing.T, strace, dir string, options ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), strace, append(append([]string{"-qq"}, options...), os.Args[0])...)
	cmd.Env = append(os.Environ(), scenarioVariable+"="+s.Name, dirVariable+"="+dir, "GOMAXPROCS="+strconv.Itoa(1))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func names() []string {
	all := make([]string, 0, len(errnos))
	for name := range errnos {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// find returns the files below the directory whose names contain the text.
func find(dir, text string) []string {
	var found []string
	_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.Contains(filepath.Base(path), text) {
			found = append(found, path)
		}
		return nil
	})
	return found
}
