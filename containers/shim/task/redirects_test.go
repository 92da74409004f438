package task

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// The escapes of runc in which the container's owner redirects what the runtime mounts or writes.

// attempts is how often an escape that depends on a race is tried.
const attempts = 25

// canary is a file of the machine that the container has, and may not change by way of the runtime.
const canary = "canary"

// ownRoot makes a root of a container with a static shell, in which all that the tests need are files of ours.
func (f *fixture) ownRoot(t *testing.T, name string) string {
	t.Helper()
	shell, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Skipf("needs busybox, statically linked (apt-get install busybox-static): %v", err)
	}
	root := filepath.Join(f.dir, name)
	for _, dir := range []string{"bin", "proc", "dev", "out", "tmp"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(root, "bin/busybox"), string(shell), 0o755)
	write(t, filepath.Join(root, canary), "untouched\n", 0o644)
	return root
}

func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(data)
}

// inRoot is a container with a root of its own that runs a script, whose output goes to /out/result.
func (f *fixture) inRoot(root, id, script string) *specs.Spec {
	spec := f.specOf(id, []string{"/bin/busybox", "sh", "-c", "{ " + script + "; } >/out/result 2>&1"})
	spec.Root = &specs.Root{Path: root}
	spec.Mounts = []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}}
	return spec
}

// eachAttacked tries an escape on each runtime. try reports whether it succeeded, and whether the container ran at all.
func eachAttacked(t *testing.T, tries int, try func(t *testing.T, f *fixture, on attacked, id string) (escaped, ran bool)) {
	for _, on := range allAttacked() {
		t.Run(on.name, func(t *testing.T) {
			f := newFixture(t)
			escapes, runs := 0, 0
			for i := 0; i < tries && (!on.escapes || escapes == 0); i++ {
				escaped, ran := try(t, f, on, fmt.Sprint("c", i))
				if escaped {
					escapes++
				}
				if ran {
					runs++
				}
			}
			t.Logf("%d escapes, %d containers ran", escapes, runs)
			if (escapes > 0) != on.escapes {
				t.Errorf("%d escapes of %d containers that ran; want some: %t", escapes, runs, on.escapes)
			}
		})
	}
}

func makeDirs(t *testing.T, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMountTargetsThatAreExchanged tries CVE-2021-30465: a directory of a shared volume in the path of a mount becomes a link to a
// directory of the machine just before the runtime mounts there. A mount that is not in the container afterwards has gone elsewhere.
func TestMountTargetsThatAreExchanged(t *testing.T) {
	eachAttacked(t, attempts, func(t *testing.T, f *fixture, on attacked, id string) (escaped, ran bool) {
		root := f.ownRoot(t, id+"-root")
		volume, outside := filepath.Join(f.dir, id+"-volume"), filepath.Join(f.dir, id+"-outside")
		makeDirs(t, volume+"/a/b", outside+"/b", root+"/vol", root+outside+"/b")
		link(t, outside, volume+"/link")
		spec := f.inRoot(root, id, "cat /proc/self/mountinfo")
		spec.Mounts = append(spec.Mounts,
			specs.Mount{Destination: "/vol", Type: "bind", Source: volume, Options: []string{"bind"}},
			specs.Mount{Destination: "/vol/a/b", Type: "tmpfs", Source: "exchanged"})
		stop := exchange(t, volume+"/a", volume+"/link")
		err := on.run(t, f, id, spec)
		stop()
		if err != nil {
			t.Logf("refused: %v", err)
			return false, false
		}
		result := read(t, root+"/out/result")
		if result == "" {
			t.Fatal("the container has written nothing")
		}
		return !strings.Contains(result, " exchanged "), true
	})
}

// TestConsoleBehindALink tries CVE-2025-52565: /dev/console of the container is a link, and the runtime mounts the terminal there, before
// it protects the paths below /proc.
func TestConsoleBehindALink(t *testing.T) {
	eachAttacked(t, 1, func(t *testing.T, f *fixture, on attacked, id string) (escaped, ran bool) {
		root := f.ownRoot(t, id+"-root")
		devices := filepath.Join(f.dir, id+"-dev")
		link(t, "/"+canary, devices+"/console")
		if err := os.Mkdir(devices+"/pts", 0o755); err != nil {
			t.Fatal(err)
		}
		spec := f.inRoot(root, id, `if [ -f /canary ]; then echo safe; else echo covered; fi`)
		spec.Process.Terminal = true
		spec.Mounts = append(spec.Mounts,
			specs.Mount{Destination: "/dev", Type: "bind", Source: devices, Options: []string{"bind"}},
			specs.Mount{Destination: "/dev/pts", Type: "devpts", Source: "devpts"})
		if err := on.run(t, f, id, spec); err != nil {
			t.Logf("refused: %v", err)
			return false, false
		}
		result := read(t, root+"/out/result")
		if result == "" {
			t.Fatal("the container has written nothing")
		}
		return !strings.Contains(result, "safe"), true
	})
}

// TestWritesBelowProcAreRedirected tries CVE-2025-52881: what the runtime takes for /proc/sys is the container's, and a link in it leads
// the runtime's write to a file that the container's owner has chosen.
func TestWritesBelowProcAreRedirected(t *testing.T) {
	eachAttacked(t, 1, func(t *testing.T, f *fixture, on attacked, id string) (escaped, ran bool) {
		root := f.ownRoot(t, id+"-root")
		link(t, "/"+canary, root+"/proc/sys/kernel/domainname")
		write(t, root+"/proc/sys/kernel/cap_last_cap", "40\n", 0o644) // which the runtime reads
		spec := f.inRoot(root, id, "echo ran")
		spec.Mounts = nil // no procfs of the runtime's covers it
		spec.Linux.Sysctl = map[string]string{"kernel.domainname": "redirected"}
		err := on.run(t, f, id, spec)
		if err != nil {
			t.Logf("refused: %v", err)
		}
		return read(t, filepath.Join(root, canary)) != "untouched\n", err == nil
	})
}

// TestMountTargetsAreMadeInTheContainer tries CVE-2024-45310: a directory of a shared volume becomes a link to a directory of the machine
// while the runtime makes the directory that it mounts on, below it.
func TestMountTargetsAreMadeInTheContainer(t *testing.T) {
	eachAttacked(t, attempts, func(t *testing.T, f *fixture, on attacked, id string) (escaped, ran bool) {
		root := f.ownRoot(t, id+"-root")
		volume, outside := filepath.Join(f.dir, id+"-volume"), filepath.Join(f.dir, id+"-outside")
		makeDirs(t, volume+"/a", outside, root+"/vol", root+outside)
		link(t, outside, volume+"/link")
		spec := f.inRoot(root, id, "echo ran")
		spec.Mounts = append(spec.Mounts,
			specs.Mount{Destination: "/vol", Type: "bind", Source: volume, Options: []string{"bind"}},
			specs.Mount{Destination: "/vol/a/made/here", Type: "tmpfs", Source: "made"})
		stop := exchange(t, volume+"/a", volume+"/link")
		err := on.run(t, f, id, spec)
		stop()
		if err != nil {
			t.Logf("refused: %v", err)
		}
		made, readErr := os.ReadDir(outside)
		if readErr != nil {
			t.Fatal(readErr)
		}
		return len(made) > 0, err == nil
	})
}

// TestDevicesBehindALink tries CVE-2026-41579: the image's /dev is a link to a directory of the machine, in which the runtime removes and
// makes files.
func TestDevicesBehindALink(t *testing.T) {
	eachAttacked(t, 1, func(t *testing.T, f *fixture, on attacked, id string) (escaped, ran bool) {
		root, outside := f.ownRoot(t, id+"-root"), filepath.Join(f.dir, id+"-outside")
		makeDirs(t, outside, root+outside)
		write(t, outside+"/ptmx", "untouched\n", 0o644)
		if err := os.Remove(root + "/dev"); err != nil {
			t.Fatal(err)
		}
		link(t, outside, root+"/dev")
		err := on.run(t, f, id, f.inRoot(root, id, "echo ran"))
		if err != nil {
			t.Logf("refused: %v", err)
		}
		files, readErr := os.ReadDir(outside)
		if readErr != nil {
			t.Fatal(readErr)
		}
		return len(files) != 1 || read(t, outside+"/ptmx") != "untouched\n", err == nil
	})
}

// TestProcBehindALink tries CVE-2019-19921 and, which are the same with later releases, CVE-2023-27561 and CVE-2023-28642: /proc of the
// image is a link into a volume, so the container's owner decides what the runtime sets up by files of /proc.
func TestProcBehindALink(t *testing.T) {
	eachAttacked(t, 1, func(t *testing.T, f *fixture, on attacked, id string) (escaped, ran bool) {
		root := f.ownRoot(t, id+"-root")
		if err := os.Remove(root + "/proc"); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(root+"/elsewhere", 0o755); err != nil {
			t.Fatal(err)
		}
		link(t, "elsewhere", root+"/proc")
		err := on.run(t, f, id, f.inRoot(root, id, "cat /proc/self/mountinfo"))
		if err != nil {
			t.Logf("refused: %v", err)
			return false, false
		}
		return strings.Contains(read(t, root+"/out/result"), " /elsewhere "), true
	})
}
