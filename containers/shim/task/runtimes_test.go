package task

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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
	// escapes says that the escape must succeed: the runtime protects nothing.
	escapes bool
}

// allAttacked are both runtimes, and a stand-in that does what a runtime does without any of the protections.
func allAttacked() []attacked {
	return []attacked{
		{name: "shim", run: runWithShim},
		{name: "runc", run: runWithRunc},
		{name: "unprotected", run: runUnprotected, escapes: true},
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

func runWithRunc(t *testing.T, f *fixture, id string, spec *specs.Spec) error {
	t.Helper()
	program, err := filepath.Abs("../../../bin/runc")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		t.Skipf("not built, run make build: %v", err)
	}
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

// unprotectedBundle is the environment of the stand-in: the bundle.
const unprotectedBundle = "SHIM_TEST_UNPROTECTED"

func runUnprotected(t *testing.T, f *fixture, id string, spec *specs.Spec) error {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(program)
	child.Env = append(os.Environ(), unprotectedBundle+"="+f.bundle(t, id, spec))
	out, err := child.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func init() {
	if bundle := os.Getenv(unprotectedBundle); bundle != "" {
		if err := unprotected(bundle); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
}

// unprotected becomes the process of a container, by paths: it follows the links that the container's owner has made.
func unprotected(bundle string) error {
	runtime.LockOSThread()
	var spec specs.Spec
	data, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err := errors.Join(err, json.Unmarshal(data, &spec)); err != nil {
		return err
	}
	root := spec.Root.Path
	if !filepath.IsAbs(root) {
		root = filepath.Join(bundle, root)
	}
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWUTS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	for _, m := range spec.Mounts {
		flags := uintptr(0)
		if m.Type == "bind" {
			flags = unix.MS_BIND
		}
		if err := unix.Mount(m.Source, filepath.Join(root, m.Destination), m.Type, flags, ""); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("mount %s: %w", m.Destination, err)
		}
	}
	if err := errors.Join(unix.Chroot(root), unix.Chdir("/")); err != nil {
		return err
	}
	if spec.Process.Terminal {
		if err := unix.Mount("/dev/pts/ptmx", "/dev/console", "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount the console: %w", err)
		}
	}
	for name, value := range spec.Linux.Sysctl {
		if err := os.WriteFile(filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/")), []byte(value), 0o644); err != nil {
			return err
		}
	}
	return unix.Exec(spec.Process.Args[0], spec.Process.Args, spec.Process.Env)
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
