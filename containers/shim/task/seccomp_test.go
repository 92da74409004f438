//go:build seccomp

package task

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// TestProfileIsCompiledOnce runs containers and an exec with one profile, and one container with another.
func TestProfileIsCompiledOnce(t *testing.T) {
	f := newFixture(t)
	refuse := func(call string) change {
		return func(s *specs.Spec) {
			s.Linux.Seccomp = &specs.LinuxSeccomp{
				DefaultAction: specs.ActAllow,
				Syscalls:      []specs.LinuxSyscall{{Names: []string{call, call + "at"}, Action: specs.ActErrno}},
			}
		}
	}
	files := func() []string {
		found, err := filepath.Glob(filepath.Join(f.root, seccompDir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	const script = "mkdir /tmp/new && echo made; ln -s x /tmp/link && echo linked"
	for i, profile := range []string{"mkdir", "mkdir", "symlink"} {
		id := fmt.Sprint("c", i)
		s := f.streams(t, id)
		if err := f.create(t, id, false, &streams{stdout: s.stdout}, []string{"/bin/sh", "-c", script + "; exec sleep 1000"}, refuse(profile)); err != nil {
			t.Fatal(err)
		}
		state, err := f.State(t.Context(), &api.StateRequest{ID: id})
		if err != nil {
			t.Fatal(err)
		}
		command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", state.Pid)) // it waits for its start
		if err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(string(command), "\x00")
		if _, file, _ := strings.Cut(name, ":"); !strings.Contains(strings.Join(files(), " ")+" ", file+" ") || file == "" {
			t.Errorf("the process of a container is %q, and has none of the files %q", name, files())
		}
		if _, err := f.Start(t.Context(), &api.StartRequest{ID: id}); err != nil {
			t.Fatal(err)
		}
		e := f.streams(t, id+"exec")
		if err := f.exec(t, id, "exec", false, &streams{stdout: e.stdout}, "/bin/sh", "-c", strings.ReplaceAll(script, "/tmp/", "/tmp/exec")); err != nil {
			t.Fatal(err)
		}
		f.wait(t, id, "exec")
		f.end(id)
		want := map[string]string{"mkdir": "linked\n", "symlink": "made\n"}[profile]
		if out, inExec := receive(t, s.out), receive(t, e.out); out != want || inExec != want {
			t.Errorf("with %s refused the container says %q and its exec %q, want %q", profile, out, inExec, want)
		}
	}
	if len(files()) != 2 {
		t.Errorf("files of compiled profiles: %q", files())
	}
}
