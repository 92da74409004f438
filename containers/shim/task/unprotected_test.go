package task

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// The stand-in for a runtime without protections: the program of the tests, which does by paths what a runtime does, follows the links that
// the container's owner has made, and leaves its descriptors and its program to the container.

// The environment of the stand-in: the bundle of a container to become, or the root and the process (in JSON) of a process to become.
const (
	unprotectedBundle  = "SHIM_TEST_UNPROTECTED"
	unprotectedRoot    = "SHIM_TEST_UNPROTECTED_ROOT"
	unprotectedProcess = "SHIM_TEST_UNPROTECTED_PROCESS"
)

func unprotectedProgram(t *testing.T, f *fixture) string {
	t.Helper()
	return f.copyOf(t, ownProgram(t, f))
}

func runUnprotected(t *testing.T, f *fixture, id string, spec *specs.Spec) error {
	t.Helper()
	child := exec.Command(unprotectedProgram(t, f))
	child.Env = append(os.Environ(), unprotectedBundle+"="+f.bundle(t, id, spec))
	var out bytes.Buffer
	child.Stdout, child.Stderr = &out, &out
	if err := child.Start(); err != nil {
		return err
	}
	write(t, filepath.Join(f.dir, id, "pid"), fmt.Sprint(child.Process.Pid), 0o600)
	if err := child.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, out.String())
	}
	return nil
}

func execUnprotected(t *testing.T, f *fixture, id string, process *specs.Process) error {
	t.Helper()
	data, err := json.Marshal(process)
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(unprotectedProgram(t, f))
	child.Env = append(os.Environ(), unprotectedRoot+"=/proc/"+read(t, filepath.Join(f.dir, id, "pid"))+"/root",
		unprotectedProcess+"="+string(data))
	if err := child.Start(); err != nil {
		return err
	}
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	return nil
}

func init() {
	bundle, root := os.Getenv(unprotectedBundle), os.Getenv(unprotectedRoot)
	if bundle == "" && root == "" {
		return
	}
	runtime.LockOSThread()
	var err error
	if bundle != "" {
		err = becomeContainer(bundle)
	} else {
		var process specs.Process
		if err = json.Unmarshal([]byte(os.Getenv(unprotectedProcess)), &process); err == nil {
			err = becomeProcess(root, &process)
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// becomeContainer makes a container and becomes its process.
func becomeContainer(bundle string) error {
	var spec specs.Spec
	data, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err := errors.Join(err, json.Unmarshal(data, &spec)); err != nil {
		return err
	}
	root := spec.Root.Path
	if !filepath.IsAbs(root) {
		root = filepath.Join(bundle, root)
	}
	// A descriptor that stays open, as one of runc's did.
	if _, err := unix.Open("/sys/fs/cgroup", unix.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWUTS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	for _, m := range spec.Mounts {
		if err := mountUnprotected(root, m); err != nil {
			return fmt.Errorf("mount %s: %w", m.Destination, err)
		}
	}
	if !slices.ContainsFunc(spec.Mounts, func(m specs.Mount) bool { return m.Destination == "/dev" }) {
		if err := linkDevices(filepath.Join(root, "dev")); err != nil {
			return err
		}
	}
	if err := errors.Join(unix.Chroot(root), unix.Chdir("/")); err != nil {
		return err
	}
	if err := finishUnprotected(&spec); err != nil {
		return err
	}
	return becomeProcess("/", spec.Process)
}

// mountUnprotected makes the target of a mount, if it does not exist, and mounts.
func mountUnprotected(root string, m specs.Mount) error {
	target, flags := filepath.Join(root, m.Destination), uintptr(0)
	if m.Type == "bind" {
		flags = unix.MS_BIND
	}
	if _, err := os.Stat(target); os.IsNotExist(err) {
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
	}
	return unix.Mount(m.Source, target, m.Type, flags, "")
}

// linkDevices makes the links of a container's directory of devices.
func linkDevices(dir string) error {
	for name, target := range map[string]string{"ptmx": "pts/ptmx", "stdin": "/proc/self/fd/0"} {
		_ = os.Remove(filepath.Join(dir, name))
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// finishUnprotected does what a runtime does when the container's root has become the root.
func finishUnprotected(spec *specs.Spec) error {
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
	for _, path := range spec.Linux.MaskedPaths {
		if err := unix.Mount("/dev/null", path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mask %s: %w", path, err)
		}
	}
	return nil
}

// becomeProcess becomes a process in a root.
func becomeProcess(root string, process *specs.Process) error {
	if err := errors.Join(unix.Chroot(root), unix.Chdir("/"), unix.Chdir(process.Cwd)); err != nil {
		return err
	}
	return unix.Exec(process.Args[0], process.Args, process.Env)
}
