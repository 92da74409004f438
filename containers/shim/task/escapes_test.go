package task

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// The escapes that runc has had. Each is tried with both runtimes, and with a stand-in that has none of their protections, where it must
// succeed. Here are those by what a container gets from its runtime: its program, its descriptors, and its mounts.

// TestOwnProgramIsOutOfReach tries CVE-2019-5736: a container that runs its own init's program again may not write to that program.
func TestOwnProgramIsOutOfReach(t *testing.T) {
	eachAttacked(t, 1, func(t *testing.T, f *fixture, on attacked, id string) (escaped, ran bool) {
		program := on.program(t, f)
		before := hashOf(t, program)
		shared := filepath.Join(f.dir, "shared")
		if err := os.Mkdir(shared, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mkfifo(filepath.Join(shared, "config.json"), 0o600); err != nil { // runc waits for its content
			t.Fatal(err)
		}
		spec := f.specOf(id, []string{"/bin/sh", "-c", "{ " + overwriteScript + "; } >/mnt/result 2>&1"})
		spec.Root.Readonly = false
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: "/mnt", Type: "bind", Source: shared, Options: []string{"bind", "rw"}})
		allowToTrace(spec.Process)
		ended := make(chan error, 1)
		go func() { ended <- on.run(t, f, id, spec) }()
		eventually(t, "the container runs", func() bool { _, err := os.Stat(filepath.Join(shared, "runs")); return err == nil })
		// A process whose program is that of the process which starts it: the runtime's own. It waits until it is killed.
		process := f.specOf(id, []string{"/proc/self/exe", "run", "--bundle", "/mnt", "attack-on-its-program"}).Process
		process.Env = append(process.Env, "SHIM_TEST_SLEEP=1")
		allowToTrace(process)
		if err := on.exec(t, f, id, process); err != nil {
			t.Error(err)
		}
		write(t, filepath.Join(shared, "started"), "", 0o644)
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(waitTimeout):
			t.Fatal("the container does not end")
		}
		result := read(t, filepath.Join(shared, "result"))
		t.Log(result)
		if !strings.Contains(result, "found") {
			t.Error("the container did not find the runtime's program: this test shows nothing")
		}
		return strings.Contains(result, "written") || hashOf(t, program) != before, true
	})
}

// overwriteScript finds the process that has the program of the runtime, opens that, and tries to write to it while it runs and after it
// has ended.
const overwriteScript = `: >/mnt/runs
	while [ ! -e /mnt/started ]; do sleep 0.01; done
	for i in $(seq 200); do for p in /proc/[0-9]*; do
		tr '\0' ' ' <$p/cmdline 2>/dev/null | grep -q '^/proc/self/exe .*attack-on-its-program' || continue
		exec 9<$p/exe || continue
		echo found $(readlink $p/exe)
		echo overwritten 2>/dev/null >/proc/self/fd/9 && echo written
		kill -9 ${p#/proc/}
		for j in $(seq 100); do echo overwritten 2>/dev/null >/proc/self/fd/9 && echo written && exit; sleep 0.01; done
		exit
	done; done`

func hashOf(t *testing.T, path string) [32]byte {
	t.Helper()
	return sha256.Sum256([]byte(read(t, path)))
}

// allowToTrace gives a process a capability that containers do not have by default, so that it may open the programs of others.
func allowToTrace(process *specs.Process) {
	caps := append(slices.Clone(process.Capabilities.Bounding), "CAP_SYS_PTRACE")
	process.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
}

// TestDescriptorsAreOutOfReach tries CVE-2024-21626: a working directory behind a descriptor of the machine that the runtime has open.
func TestDescriptorsAreOutOfReach(t *testing.T) {
	const tried = 40 // descriptors, each by a container of its own
	fd := 0
	eachAttacked(t, tried, func(t *testing.T, f *fixture, on attacked, id string) (escaped, ran bool) {
		fd = fd%tried + 1
		write(t, filepath.Join(f.dir, "secret"), "secret of the machine\n", 0o644)
		root := f.ownRoot(t, id+"-root")
		spec := f.inRoot(root, id, "/bin/busybox cat ../../.."+f.dir+"/secret")
		spec.Process.Cwd = fmt.Sprintf("/proc/self/fd/%d", fd)
		err := on.run(t, f, id, spec)
		result := read(t, root+"/out/result")
		if err == nil {
			t.Logf("a process started in the directory of descriptor %d: %q", fd, result)
		}
		return strings.Contains(result, "secret of the machine"), err == nil
	})
}

// TestExecsHaveNoDescriptors tries the same with execs of the shim, whose process has directories of the machine open.
func TestExecsHaveNoDescriptors(t *testing.T) {
	f := newFixture(t)
	directory, err := os.Open("/sys/fs/cgroup") // as a leaked one would be
	if err != nil {
		t.Fatal(err)
	}
	defer directory.Close()
	f.run(t, "c", nil, []string{"/bin/sleep", "1000"})
	for fd := 3; fd < 40; fd++ {
		s := f.streams(t, fmt.Sprint("fd", fd))
		id := fmt.Sprint("cwd", fd)
		process := f.specOf("c", []string{"/bin/sh", "-c", "cat ../../../../../proc/1/cmdline; ls"}).Process
		process.Cwd = fmt.Sprintf("/proc/self/fd/%d", fd)
		if err := f.execProcess(t, "c", id, s, process); err != nil {
			continue
		}
		f.wait(t, "c", id)
		if _, err := f.Delete(t.Context(), &api.DeleteRequest{ID: "c", ExecID: id}); err != nil {
			t.Fatal(err)
		}
		t.Errorf("a process started in the directory of descriptor %d: %q", fd, receive(t, s.out))
	}
	// What a process of the container has open.
	s := f.streams(t, "list")
	if err := f.exec(t, "c", "list", false, s, "/bin/sh", "-c", "ls -l /proc/self/fd"); err != nil {
		t.Fatal(err)
	}
	f.wait(t, "c", "list")
	if _, err := f.Delete(t.Context(), &api.DeleteRequest{ID: "c", ExecID: "list"}); err != nil {
		t.Fatal(err)
	}
	if out := receive(t, s.out); strings.Contains(out, f.dir) || strings.Contains(out, "cgroup") || strings.Count(out, " -> ") > 4 {
		t.Errorf("descriptors of the shim are in the container: %s", out)
	}
}

// TestMaskedPathsBehindALink tries CVE-2025-31133: /dev/null of the container is a link to a file of /proc that is read-only in the
// container, and masked paths are mounted from it.
func TestMaskedPathsBehindALink(t *testing.T) {
	eachAttacked(t, 1, func(t *testing.T, f *fixture, on attacked, id string) (escaped, ran bool) {
		root, devices := f.ownRoot(t, id+"-root"), filepath.Join(f.dir, id+"-dev")
		link(t, "/proc/sys/kernel/core_pattern", devices+"/null")
		spec := f.inRoot(root, id, "cat /proc/interrupts")
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: "/dev", Type: "bind", Source: devices, Options: []string{"bind"}})
		spec.Linux.MaskedPaths = []string{"/proc/interrupts"}
		if err := on.run(t, f, id, spec); err != nil {
			t.Logf("refused: %v", err)
			return false, false
		}
		pattern := strings.TrimSpace(read(t, "/proc/sys/kernel/core_pattern"))
		return strings.TrimSpace(read(t, root+"/out/result")) == pattern, true
	})
}
