package task

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// attacked is a runtime on which an escape is tried.
type attacked struct {
	name string
	// run runs a container to its end. An error is a container that was refused.
	run func(t *testing.T, f *fixture, id string, spec *specs.Spec) error
	// exec starts one more process in a container that runs. The process ends with the container. An error is one that did not start.
	exec func(t *testing.T, f *fixture, id string, process *specs.Process) error
	// program is the file that becomes the first program of a container's processes. A test may damage it.
	program func(t *testing.T, f *fixture) string
	// escapes says that the escape must succeed: the runtime protects nothing.
	escapes bool
}

// allAttacked are both runtimes, and a stand-in that does what a runtime does without any of the protections.
func allAttacked() []attacked {
	return []attacked{
		{name: "shim", run: runWithShim, exec: execWithShim, program: ownProgram},
		{name: "runc", run: runWithRunc, exec: execWithRunc, program: runcProgram},
		{name: "unprotected", run: runUnprotected, exec: execUnprotected, program: unprotectedProgram, escapes: true},
	}
}

func runWithShim(t *testing.T, f *fixture, id string, spec *specs.Spec) error {
	t.Helper()
	if err := f.create(t, id, spec.Process.Terminal, nil, nil, func(s *specs.Spec) { *s = *spec }); err != nil {
		return err
	}
	_, startErr := f.Start(t.Context(), &api.StartRequest{ID: id})
	if startErr == nil {
		f.wait(t, id, "")
	}
	_, err := f.Delete(t.Context(), &api.DeleteRequest{ID: id})
	return errors.Join(startErr, err)
}

func execWithShim(t *testing.T, f *fixture, id string, process *specs.Process) error {
	t.Helper()
	return f.execProcess(t, id, "exec", nil, process)
}

// ownProgram is the test's: it is the shim in these tests.
func ownProgram(t *testing.T, _ *fixture) string {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// runcProgram is a copy of runc's program.
func runcProgram(t *testing.T, f *fixture) string {
	t.Helper()
	built, err := filepath.Abs("../../../bin/runc")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(built); err != nil {
		t.Skipf("not built, run make build: %v", err)
	}
	return f.copyOf(t, built)
}

// copyOf makes an executable copy of a file, once.
func (f *fixture) copyOf(t *testing.T, path string) string {
	t.Helper()
	to := filepath.Join(f.dir, "copy-"+filepath.Base(path))
	if _, err := os.Stat(to); err != nil {
		write(t, to, read(t, path), 0o755)
	}
	return to
}

func runWithRunc(t *testing.T, f *fixture, id string, spec *specs.Spec) error {
	t.Helper()
	program := runcProgram(t, f)
	bundle := f.bundle(t, id, spec)
	args := []string{"--root", filepath.Join(f.root, "runc"), "run", "--bundle", bundle}
	if spec.Process.Terminal {
		console, err := net.Listen("unix", filepath.Join(f.dir, id+"-console"))
		if err != nil {
			t.Fatal(err)
		}
		defer console.Close()
		go func() {
			if conn, err := console.Accept(); err == nil {
				defer conn.Close()
				_, _ = conn.Read(make([]byte, 1)) // the terminal comes with it, and is not needed
			}
		}()
		args = append(args, "--detach", "--console-socket", console.Addr().String())
		defer func() {
			_ = exec.Command(program, "--root", filepath.Join(f.root, "runc"), "delete", "--force", id).Run()
		}()
	}
	out, err := exec.Command(program, append(args, id)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if spec.Process.Terminal {
		eventually(t, "the end of a detached container", func() bool {
			state, err := exec.Command(program, "--root", filepath.Join(f.root, "runc"), "state", id).Output()
			return err != nil || strings.Contains(string(state), `"stopped"`)
		})
	}
	return nil
}

func execWithRunc(t *testing.T, f *fixture, id string, process *specs.Process) error {
	t.Helper()
	data, err := json.Marshal(process)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(f.dir, id+"-process.json")
	write(t, file, string(data), 0o600)
	// Its output is that of the process, too: a pipe would not end.
	return exec.Command(runcProgram(t, f), "--root", filepath.Join(f.root, "runc"), "exec", "--detach", "--process", file, id).Run()
}

// bundle writes a bundle whose root is mounted until the test ends.
func (f *fixture) bundle(t *testing.T, id string, spec *specs.Spec) string {
	t.Helper()
	bundle := filepath.Join(f.dir, id)
	rootfs := filepath.Join(bundle, "rootfs")
	if err := os.MkdirAll(rootfs, 0o711); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if filepath.IsAbs(spec.Root.Path) {
		return bundle
	}
	if err := unix.Mount("/", rootfs, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(rootfs, unix.MNT_DETACH) })
	return bundle
}

// exchange exchanges two files, again and again until the returned function is called.
func exchange(t *testing.T, a, b string) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			default:
			}
			if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
				t.Error(err)
				return
			}
			time.Sleep(20 * time.Microsecond) // both states exist for a moment
		}
	}()
	return func() { close(done); <-ended }
}
