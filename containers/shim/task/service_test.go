package task

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	api "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/berth-dev/berth/containers/shim/container"
)

// isKind reports whether a request failed with a kind of containerd's errors.
func isKind(err, kind error) bool { return errors.Is(errgrpc.ToNative(err), kind) }

func (f *fixture) status(t *testing.T, id, execID string) tasktypes.Status {
	t.Helper()
	state, err := f.State(t.Context(), &api.StateRequest{ID: id, ExecID: execID})
	if err != nil {
		t.Fatal(err)
	}
	return state.Status
}

// TestLifeOfAContainer goes from creation to removal and compares what the shim and runc say of it.
func TestLifeOfAContainer(t *testing.T) {
	f := newFixture(t)
	s := f.streams(t, "c")
	if err := f.create(t, "c", false, s, []string{"/bin/sh", "-c", "echo out; echo err >&2; exec sleep 1000"}); err != nil {
		t.Fatal(err)
	}
	if got := f.runc(t, "list", "-q"); got != "c" {
		t.Errorf("runc lists %q", got)
	}
	if f.status(t, "c", "") != tasktypes.Status_CREATED || !strings.Contains(f.runc(t, "state", "c"), `"created"`) {
		t.Errorf("the container is not created: %s", f.runc(t, "state", "c"))
	}
	if _, err := f.Start(t.Context(), &api.StartRequest{ID: "c"}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Start(t.Context(), &api.StartRequest{ID: "c"}); !isKind(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("a second start: %v", err)
	}
	if !strings.Contains(f.runc(t, "state", "c"), `"running"`) {
		t.Errorf("runc does not see that it runs: %s", f.runc(t, "state", "c"))
	}
	if got := f.runc(t, "exec", "c", "/bin/echo", "from runc"); got != "from runc" {
		t.Errorf("runc exec: %q", got)
	}
	stats, err := f.Stats(t.Context(), &api.StatsRequest{ID: "c"})
	if err != nil || len(stats.Stats.Value) == 0 {
		t.Errorf("stats: %v", err)
	}
	if _, err := f.Delete(t.Context(), &api.DeleteRequest{ID: "c"}); !isKind(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("a running container was deleted: %v", err)
	}
	if _, err := f.Kill(t.Context(), &api.KillRequest{ID: "c", Signal: uint32(unix.SIGKILL)}); err != nil {
		t.Fatal(err)
	}
	if got := f.wait(t, "c", ""); got != 137 {
		t.Errorf("exit code %d", got)
	}
	if _, err := f.Kill(t.Context(), &api.KillRequest{ID: "c", Signal: uint32(unix.SIGKILL)}); !isKind(err, errdefs.ErrNotFound) {
		t.Errorf("a signal for a container that has ended: %v", err)
	}
	pids, err := f.Pids(t.Context(), &api.PidsRequest{ID: "c"})
	if err != nil || len(pids.Processes) != 1 {
		t.Errorf("containerd would take the container for the rest of a failed start: %v %v", pids, err)
	}
	f.deleteAndCheck(t, "c")
	if out, stderr := receive(t, s.out), receive(t, s.err); out != "out\n" || stderr != "err\n" {
		t.Errorf("output %q, errors %q", out, stderr)
	}
	events := f.waitEvent(t, "/tasks/delete ")
	if want := []string{"/tasks/create", "/tasks/start", "/tasks/exit c", "/tasks/delete "}; !slices.Equal(events, want) {
		t.Errorf("events %q, want %q", events, want)
	}
}

// deleteAndCheck deletes a container that has ended, and checks that nothing is left.
func (f *fixture) deleteAndCheck(t *testing.T, id string) {
	t.Helper()
	if _, err := f.Delete(t.Context(), &api.DeleteRequest{ID: id}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(f.root, "test", id)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the state of %s is left: %v", id, err)
	}
	if _, err := os.Stat(filepath.Join(f.dir, id, "rootfs", "bin")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the root of %s is mounted: %v", id, err)
	}
	for _, dir := range cgroupsOf(filepath.Base(f.dir)) {
		if _, err := os.Stat(filepath.Join(dir, id)); err == nil {
			t.Errorf("a cgroup of %s is left: %s", id, dir)
		}
	}
	if _, err := f.State(t.Context(), &api.StateRequest{ID: id}); !isKind(err, errdefs.ErrNotFound) {
		t.Errorf("a deleted container: %v", err)
	}
}

func TestExitCodesAndFailedStarts(t *testing.T) {
	f := newFixture(t)
	f.run(t, "seven", nil, []string{"/bin/sh", "-c", "exit 7"})
	if got := f.wait(t, "seven", ""); got != 7 {
		t.Errorf("exit code %d", got)
	}
	f.deleteAndCheck(t, "seven")
	err := f.create(t, "absent", false, nil, []string{"/no/such/program"})
	if err == nil || !strings.Contains(err.Error(), "no such file or directory") {
		t.Errorf("a program that does not exist: %v", err)
	}
	if left, _ := filepath.Glob(f.root + "/test/*"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	// Created, and never started.
	if err := f.create(t, "waits", false, nil, []string{"/bin/true"}); err != nil {
		t.Fatal(err)
	}
	f.deleteAndCheck(t, "waits")
	// Its first process dies before it is started.
	if err := f.create(t, "dies", false, nil, []string{"/bin/true"}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Kill(t.Context(), &api.KillRequest{ID: "dies", Signal: uint32(unix.SIGKILL)}); err != nil {
		t.Fatal(err)
	}
	f.wait(t, "dies", "")
	if _, err := f.Start(t.Context(), &api.StartRequest{ID: "dies"}); err == nil {
		t.Error("a dead container was started")
	}
	f.deleteAndCheck(t, "dies")
}

func TestExecs(t *testing.T) {
	f := newFixture(t)
	f.run(t, "c", nil, []string{"/bin/sleep", "1000"})
	s := f.streams(t, "huge")
	const size = 64 << 20
	if err := f.exec(t, "c", "huge", false, s, "/bin/sh", "-c", fmt.Sprintf("head -c %d /dev/zero; exit 3", size)); err != nil {
		t.Fatal(err)
	}
	if got := f.wait(t, "c", "huge"); got != 3 {
		t.Errorf("exit code %d", got)
	}
	if _, err := f.Delete(t.Context(), &api.DeleteRequest{ID: "c", ExecID: "huge"}); err != nil {
		t.Fatal(err)
	}
	if out := receive(t, s.out); len(out) != size {
		t.Errorf("%d bytes of output, want %d", len(out), size)
	}
	if err := f.exec(t, "c", "absent", false, nil, "/no/such/program"); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a program that does not exist: %v", err)
	}
	// Input goes on until it is closed.
	s = f.streams(t, "cat")
	if err := f.exec(t, "c", "cat", false, s, "/bin/cat"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.in.WriteString("hello"); err != nil {
		t.Fatal(err)
	}
	_ = s.in.Close()
	if _, err := f.CloseIO(t.Context(), &api.CloseIORequest{ID: "c", ExecID: "cat", Stdin: true}); err != nil {
		t.Fatal(err)
	}
	if got := f.wait(t, "c", "cat"); got != 0 {
		t.Errorf("cat exits with %d", got)
	}
	if out := receive(t, s.out); out != "hello" {
		t.Errorf("cat printed %q", out)
	}
	// The end of the container is published after those of its execs.
	if err := f.exec(t, "c", "long", false, nil, "/bin/sleep", "1000"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Kill(t.Context(), &api.KillRequest{ID: "c", Signal: uint32(unix.SIGKILL)}); err != nil {
		t.Fatal(err)
	}
	events := f.waitEvent(t, "/tasks/exit c")
	if !slices.Contains(events, "/tasks/exit long") {
		t.Errorf("the exec's end is not before the container's: %q", events)
	}
	f.deleteAndCheck(t, "c")
}

func TestTerminal(t *testing.T) {
	f := newFixture(t)
	f.run(t, "c", nil, []string{"/bin/sleep", "1000"})
	s := f.streams(t, "tty")
	if err := f.exec(t, "c", "tty", true, s, "/bin/sh", "-c", "read x; stty size; tty; echo got $x"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.ResizePty(t.Context(), &api.ResizePtyRequest{ID: "c", ExecID: "tty", Width: 91, Height: 33}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.in.WriteString("typed\n"); err != nil {
		t.Fatal(err)
	}
	if got := f.wait(t, "c", "tty"); got != 0 {
		t.Errorf("exit code %d", got)
	}
	out := receive(t, s.out)
	for _, want := range []string{"33 91", "/dev/pts/", "got typed"} {
		if !strings.Contains(out, want) {
			t.Errorf("the terminal shows %q, without %q", out, want)
		}
	}
	// A container with a terminal of its own.
	s = f.streams(t, "shell")
	if err := f.create(t, "shell", true, s, []string{"/bin/sh", "-c", "test -t 0 && test -t 1 && test -t 2 && echo terminal"}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Start(t.Context(), &api.StartRequest{ID: "shell"}); err != nil {
		t.Fatal(err)
	}
	if got := f.wait(t, "shell", ""); got != 0 {
		t.Errorf("exit code %d", got)
	}
	f.deleteAndCheck(t, "shell")
	if out := receive(t, s.out); out != "terminal\r\n" {
		t.Errorf("the terminal shows %q", out)
	}
}

func TestPauseAndUpdate(t *testing.T) {
	f := newFixture(t)
	f.run(t, "c", nil, []string{"/bin/sleep", "1000"})
	if _, err := f.Resume(t.Context(), &api.ResumeRequest{ID: "c"}); !isKind(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("a container that is not paused was resumed: %v", err)
	}
	if _, err := f.Pause(t.Context(), &api.PauseRequest{ID: "c"}); err != nil {
		t.Fatal(err)
	}
	if f.status(t, "c", "") != tasktypes.Status_PAUSED || !strings.Contains(f.runc(t, "state", "c"), `"paused"`) {
		t.Error("the container is not paused")
	}
	if err := f.exec(t, "c", "early", false, nil, "/bin/true"); err == nil {
		t.Error("an exec started in a paused container")
	}
	if _, err := f.Resume(t.Context(), &api.ResumeRequest{ID: "c"}); err != nil {
		t.Fatal(err)
	}
	if err := f.exec(t, "c", "late", false, nil, "/bin/true"); err != nil {
		t.Errorf("an exec after the pause: %v", err)
	}
	if _, err := f.Update(t.Context(), &api.UpdateTaskRequest{ID: "c", Resources: &anypb.Any{Value: []byte(`{"cpu":{"shares":512},"pids":{"limit":77}}`)}}); err != nil {
		t.Fatal(err)
	}
	if group := "/sys/fs/cgroup/pids/" + filepath.Base(f.dir) + "/c/pids.max"; exists(group) {
		if data, _ := os.ReadFile(group); string(data) != "77\n" {
			t.Errorf("pids.max is %q", data)
		}
	}
	// A paused container can be killed.
	if _, err := f.Pause(t.Context(), &api.PauseRequest{ID: "c"}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Kill(t.Context(), &api.KillRequest{ID: "c", Signal: uint32(unix.SIGKILL)}); err != nil {
		t.Fatal(err)
	}
	f.wait(t, "c", "")
	f.deleteAndCheck(t, "c")
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

func TestOOMKillIsReported(t *testing.T) {
	f := newFixture(t)
	f.run(t, "c", nil, []string{"/bin/sh", "-c", "x=a; while :; do x=$x$x; done"}, withMemoryLimit(64<<20))
	if got := f.wait(t, "c", ""); got != 137 {
		t.Errorf("exit code %d", got)
	}
	events := f.waitEvent(t, "/tasks/exit c")
	if !slices.Contains(events, "/tasks/oom") {
		t.Errorf("no OOM kill before the exit: %q", events)
	}
	f.deleteAndCheck(t, "c")
}

// TestOrphansAreReaped leaves an orphan in a container without a PID namespace, which ends while the container runs, and one that has
// to be ended with it.
func TestOrphansAreReaped(t *testing.T) {
	f := newFixture(t)
	s := f.streams(t, "c")
	script := "(sh -c 'exec sleep 0.2' & echo $!) ; (setsid sleep 1000 & echo $!); exec sleep 1000"
	f.run(t, "c", &streams{stdout: s.stdout}, []string{"/bin/sh", "-c", script}, withoutPIDNamespace)
	var early, late int
	eventually(t, "the orphan that ends is reaped, and the script has printed both", func() bool {
		pids, err := f.Pids(t.Context(), &api.PidsRequest{ID: "c"})
		return err == nil && len(pids.Processes) == 2 && !slices.ContainsFunc(pids.Processes, func(p *tasktypes.ProcessInfo) bool {
			name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.Pid))
			return err != nil || strings.TrimSpace(string(name)) != "sleep"
		})
	})
	if _, err := f.Kill(t.Context(), &api.KillRequest{ID: "c", Signal: uint32(unix.SIGTERM)}); err != nil {
		t.Fatal(err)
	}
	f.wait(t, "c", "")
	f.deleteAndCheck(t, "c")
	if _, err := fmt.Sscan(receive(t, s.out), &early, &late); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no process is left", func() bool { return !exists(fmt.Sprintf("/proc/%d", early)) && !exists(fmt.Sprintf("/proc/%d", late)) })
}

// TestRemoveAfterTheShimDied removes a container as the program's delete does.
func TestRemoveAfterTheShimDied(t *testing.T) {
	f := newFixture(t)
	f.run(t, "c", nil, []string{"/bin/sleep", "1000"})
	if err := container.Remove(filepath.Join(f.root, "test"), "c"); err != nil {
		t.Fatal(err)
	}
	if got := f.wait(t, "c", ""); got != 137 {
		t.Errorf("exit code %d", got)
	}
	if err := container.Remove(filepath.Join(f.root, "test"), "c"); err != nil {
		t.Errorf("a container that is gone: %v", err)
	}
}

// TestNothingIsLeftOfManyExecs compares the descriptors, goroutines and threads after some execs with those after many more.
func TestNothingIsLeftOfManyExecs(t *testing.T) {
	f := newFixture(t)
	f.run(t, "c", nil, []string{"/bin/sleep", "1000000"})
	count := 150
	if value, err := strconv.Atoi(os.Getenv("SHIM_EXECS")); err == nil {
		count = value
	}
	batch := func(name string, n int) {
		for i := range n {
			id := fmt.Sprint(name, i)
			s := f.streams(t, id)
			if err := f.exec(t, "c", id, i%3 == 0, s, "/bin/echo", id); err != nil {
				t.Fatal(err)
			}
			if got := f.wait(t, "c", id); got != 0 {
				t.Fatalf("exec %s exits with %d", id, got)
			}
			if _, err := f.Delete(t.Context(), &api.DeleteRequest{ID: "c", ExecID: id}); err != nil {
				t.Fatal(err)
			}
			if out := receive(t, s.out); strings.TrimSpace(out) != id {
				t.Fatalf("exec %s printed %q", id, out)
			}
			_ = s.in.Close()
			for _, path := range []string{s.stdin, s.stdout, s.stderr} {
				if i%3 == 0 && path == s.stderr { // a terminal has no errors: end the reader of the test
					if file, err := os.OpenFile(path, os.O_WRONLY, 0); err == nil {
						_ = file.Close()
					}
				}
				_ = os.Remove(path)
			}
		}
	}
	measure := func() (fds, goroutines, threads int) {
		runtime.GC()
		runtime.GC()
		open, _ := filepath.Glob("/proc/self/fd/*")
		tasks, _ := filepath.Glob("/proc/self/task/*")
		return len(open), runtime.NumGoroutine(), len(tasks)
	}
	batch("some", 15)
	fds, goroutines, threads := measure()
	batch("many", count)
	var fds2, goroutines2, threads2 int
	eventually(t, "nothing is left of the execs", func() bool {
		fds2, goroutines2, threads2 = measure()
		return fds2 <= fds+3 && goroutines2 <= goroutines+3 && threads2 <= threads+10
	})
	t.Logf("%d execs: descriptors %d, then %d; goroutines %d, then %d; threads %d, then %d", count, fds, fds2, goroutines, goroutines2, threads, threads2)
}

func TestWhatIsNotImplementedIsRefused(t *testing.T) {
	f := newFixture(t)
	if _, err := f.Create(t.Context(), &api.CreateTaskRequest{ID: "d", Checkpoint: "/x"}); !isKind(err, errdefs.ErrNotImplemented) {
		t.Errorf("restore: %v", err)
	}
	if _, err := f.Create(t.Context(), &api.CreateTaskRequest{ID: "d", Bundle: f.dir, Stdout: "binary:///bin/true"}); !isKind(err, errdefs.ErrNotImplemented) {
		t.Errorf("a program for logs: %v", err)
	}
}
