package task

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// seesRoot reports whether the machine sees the root of a container.
func (f *fixture) seesRoot(t *testing.T, id string) bool {
	t.Helper()
	mounted, err := mountinfo.Mounted(filepath.Join(f.dir, id, "rootfs"))
	if err != nil {
		t.Fatal(err)
	}
	return mounted
}

func TestMachineDoesNotSeeTheRootOfAContainer(t *testing.T) {
	f := newFixture(t)
	if err := f.create(t, "c", false, nil, []string{"/bin/sleep", "1000"}); err != nil {
		t.Fatal(err)
	}
	if f.seesRoot(t, "c") {
		t.Error("the machine sees the root of a container that is created")
	}
	if _, err := f.Start(t.Context(), &api.StartRequest{ID: "c"}); err != nil {
		t.Fatal(err)
	}
	s := f.streams(t, "exec")
	if err := f.exec(t, "c", "e", false, s, "/bin/sh", "-c", "pwd; [ -x /bin/sh ] && echo there"); err != nil {
		t.Fatal(err)
	}
	f.wait(t, "c", "e")
	if out := receive(t, s.out); out != "/\nthere\n" {
		t.Errorf("an exec's output is %q", out)
	}
	held := f.tasks["c"].rootfs.held
	if _, err := f.Kill(t.Context(), &api.KillRequest{ID: "c", Signal: uint32(unix.SIGKILL)}); err != nil {
		t.Fatal(err)
	}
	f.wait(t, "c", "")
	if _, err := os.Stat(filepath.Join("/proc/self/fd", strconv.Itoa(int(held.Fd())), "bin")); err != nil {
		t.Errorf("the root is not held until the container is deleted: %v", err)
	}
	f.deleteAndCheck(t, "c")
	if _, err := held.Stat(); err == nil {
		t.Error("the root is held after the container is deleted")
	}
}

func TestMachineSeesTheRootOfContainersThatNeedIt(t *testing.T) {
	for name, change := range map[string]change{
		"hook": func(s *specs.Spec) {
			s.Hooks = &specs.Hooks{Poststop: []specs.Hook{{Path: "/bin/true"}}}
		},
		"sharedMounts": func(s *specs.Spec) { s.Linux.RootfsPropagation = "rshared" },
		"userNamespace": func(s *specs.Spec) {
			s.Linux.Namespaces = append(s.Linux.Namespaces, // sysfs needs both
				specs.LinuxNamespace{Type: specs.UserNamespace}, specs.LinuxNamespace{Type: specs.NetworkNamespace})
			all := []specs.LinuxIDMapping{{Size: 1 << 16}}
			s.Linux.UIDMappings, s.Linux.GIDMappings = all, all
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.run(t, "c", nil, []string{"/bin/sleep", "1000"}, change)
			if !f.seesRoot(t, "c") {
				t.Error("the machine does not see the root")
			}
			if _, err := f.Kill(t.Context(), &api.KillRequest{ID: "c", Signal: uint32(unix.SIGKILL)}); err != nil {
				t.Fatal(err)
			}
			f.wait(t, "c", "")
			f.deleteAndCheck(t, "c")
		})
	}
}
