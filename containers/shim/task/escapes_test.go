package task

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// The escapes that runc has had, tried against this shim: its program is the first of each process of a container, and its process has
// descriptors of the machine.

// TestOwnProgramIsOutOfReach tries CVE-2019-5736: a container that runs its own init's program again may not write to that program.
func TestOwnProgramIsOutOfReach(t *testing.T) {
	f := newFixture(t)
	hash := func() [32]byte {
		data, err := os.ReadFile("/proc/self/exe")
		if err != nil {
			t.Fatal(err)
		}
		return sha256.Sum256(data)
	}
	before := hash()
	s := f.streams(t, "c")
	// A process of the container finds the one that has the program of the runtime, opens that, and tries to write to it while it runs
	// and after it has ended.
	script := `for i in $(seq 200); do for p in /proc/[0-9]*; do
		grep -q -a '^/proc/self/exe' $p/cmdline 2>/dev/null || continue
		exec 9<$p/exe || continue
		echo found $(readlink $p/exe)
		echo overwritten 2>/dev/null >/proc/self/fd/9 && echo written
		kill -9 ${p#/proc/}
		for j in $(seq 100); do echo overwritten 2>/dev/null >/proc/self/fd/9 && echo written; done
		exit
	done; done`
	f.run(t, "c", &streams{stdout: s.stdout}, []string{"/bin/sh", "-c", script}, func(spec *specs.Spec) {
		spec.Root.Readonly = false
		allowToTrace(spec.Process)
	})
	process := f.specOf("c", []string{"/proc/self/exe"}).Process // that of the process which starts it: the runtime's own
	process.Env = append(process.Env, "SHIM_TEST_SLEEP=1")
	allowToTrace(process)
	if err := f.execProcess(t, "c", "own", nil, process); err != nil {
		t.Fatal(err)
	}
	f.wait(t, "c", "")
	f.end("c")
	out := receive(t, s.out)
	t.Log(out)
	if !strings.Contains(out, "found") {
		t.Error("the container did not find the runtime's program: this test shows nothing")
	}
	if strings.Contains(out, "written") {
		t.Error("the container wrote to the runtime's program")
	}
	if hash() != before {
		t.Error("the runtime's program has changed")
	}
}

// allowToTrace gives a process a capability that containers do not have by default, so that it may open the programs of others.
func allowToTrace(process *specs.Process) {
	caps := append(slices.Clone(process.Capabilities.Bounding), "CAP_SYS_PTRACE")
	process.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
}

// TestDescriptorsAreOutOfReach tries CVE-2024-21626: a working directory behind a descriptor that the runtime has open.
func TestDescriptorsAreOutOfReach(t *testing.T) {
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

// TestMaskedPathsBehindALink tries CVE-2025-31133: /dev/null of the container is a link, and masked paths are mounted from it.
func TestMaskedPathsBehindALink(t *testing.T) {
	f := newFixture(t)
	device := filepath.Join(f.dir, "device") // becomes /dev of the container
	if err := os.Mkdir(device, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/proc/sys/kernel/core_pattern", filepath.Join(device, "null")); err != nil {
		t.Fatal(err)
	}
	s := f.streams(t, "c")
	err := f.create(t, "c", false, &streams{stdout: s.stdout}, []string{"/bin/sh", "-c", "cat /proc/sysrq-trigger /proc/kcore 2>&1 | head -c 200"},
		func(spec *specs.Spec) {
			spec.Mounts[1] = specs.Mount{Destination: "/dev", Type: "bind", Source: device, Options: []string{"bind"}}
			spec.Mounts = append(spec.Mounts[:2], spec.Mounts[3:]...) // /dev/pts has no place there
			spec.Linux.MaskedPaths = []string{"/proc/sysrq-trigger", "/proc/kcore"}
		})
	if err != nil {
		t.Logf("refused: %v", err)
		return
	}
	if _, err := f.Start(t.Context(), &api.StartRequest{ID: "c"}); err != nil {
		t.Fatal(err)
	}
	f.wait(t, "c", "")
	f.deleteAndCheck(t, "c")
	pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	if err != nil {
		t.Fatal(err)
	}
	if out := receive(t, s.out); strings.Contains(out, strings.TrimSpace(string(pattern))) {
		t.Errorf("a masked path shows the target of the link: %q", out)
	}
}
