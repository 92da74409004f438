package up

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/shellword"
	"github.com/berth-dev/berth/up/isolate"
	"github.com/berth-dev/berth/up/supervisor"
)

// Programs are the programs that a cluster runs, relative to Config.BinDir; `make build` puts them next to berth.
func Programs() []string {
	return []string{
		"berth-controlplane", "berth-dns", "containerd", "containerd-shim-runc-v2", "containerd-shim-berth-v1", "runc", isolate.Program, supervisor.ProgramName,
		"cni/bridge", "cni/host-local", "cni/portmap", "cni/loopback", "cni/berth", "images/pause",
	}
}

// preflight checks for everything that would make the start fail later with a less clear error. It returns all errors at
// once. userNamespace says that the cluster has a user namespace, for which it does not need root.
func (l Layout) preflight(userNamespace bool) error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("berth up runs on Linux only, this is %s: use a Linux machine or a virtual machine", runtime.GOOS)
	}
	if uid := os.Geteuid(); uid != 0 && !userNamespace {
		return fmt.Errorf("berth up creates network bridges, mounts and cgroups, so it must run as root (now uid %d): use sudo; "+
			"without root a user namespace can have the API server alone: --isolated --api-only", uid)
	}
	errs := []error{l.checkPrograms(), l.checkDiskSpace(minFreeBytes)}
	_, iptables := exec.LookPath("iptables")
	if _, nft := exec.LookPath("nft"); iptables != nil && nft != nil {
		errs = append(errs, errors.New("iptables not found, which Pod networking needs: apt-get install iptables"))
	}
	if _, err := os.Stat("/proc/self/cgroup"); err != nil {
		errs = append(errs, fmt.Errorf("this kernel has no cgroups: %w", err))
	}
	if longest := l.ContainerdSocket() + ".ttrpc"; len(longest) > 107 {
		errs = append(errs, fmt.Errorf("the socket path %s is longer than the 107 bytes that the kernel allows", longest))
	}
	return errors.Join(errs...)
}

// minFreeBytes is the free disk space that a new cluster needs. etcd alone reserves 64 MiB for its log at its start.
const minFreeBytes = 128 << 20

// EnoughFreeBytes is the free space on the data directory's disk above which the Node reports no disk pressure. A tenth of
// the disk, as on a machine of its own, is too much for the disks of laptops and CI runners.
const EnoughFreeBytes = 2 << 30

// checkDiskSpace fails if a new cluster would run out of disk space. An existing one has allocated it already.
func (l Layout) checkDiskSpace(least uint64) error {
	if l.isInitialized() {
		return nil
	}
	free, err := FreeBytes(l.DataDir)
	if err != nil {
		return fmt.Errorf("read the free disk space of --data-dir: %w", err)
	}
	if free < least {
		return fmt.Errorf("--data-dir %s has %d MiB free, and a new cluster needs %d MiB before its first Pod: free disk space, or "+
			"choose another directory", l.DataDir, free>>20, least>>20)
	}
	return nil
}

// FreeBytes returns the free space on the disk of dir, which need not exist.
func FreeBytes(dir string) (uint64, error) {
	for {
		var stat unix.Statfs_t
		err := unix.Statfs(dir, &stat)
		if err == nil {
			return stat.Bavail * uint64(stat.Bsize), nil
		}
		if !errors.Is(err, unix.ENOENT) || dir == filepath.Dir(dir) {
			return 0, fmt.Errorf("statfs %s: %w", dir, err)
		}
		dir = filepath.Dir(dir)
	}
}

// checkPrograms checks that the programs which berth runs exist and are executable.
func (l Layout) checkPrograms() error {
	var missing []string
	var errs []error
	for _, name := range Programs() {
		path := l.Program(name)
		if info, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, name)
		} else if err != nil {
			errs = append(errs, fmt.Errorf("find program %s: %w", path, err))
		} else if info.Mode()&0o111 == 0 {
			errs = append(errs, fmt.Errorf("program %s is not executable: run `make build` again", path))
		}
	}
	if len(missing) > 0 {
		errs = append(errs, fmt.Errorf("%s not found in %s: run `make build`, or set --bin-dir",
			strings.Join(missing, ", "), l.BinDir))
	}
	return errors.Join(errs...)
}

// makeDirectories creates the directories that the components expect, once the state is saved. Only root can read the
// data directory. Others can traverse, but not list, the run directory: root of a Pod's user namespace reaches its root
// file system through it.
func (l Layout) makeDirectories() error {
	if err := os.MkdirAll(l.RunDir, 0o711); err != nil {
		return fmt.Errorf("make the cluster's directories: %w", err)
	}
	// Other clusters find the data directory by the link.
	link := filepath.Join(l.RunDir, dataLink)
	if err := os.Symlink(l.DataDir, link); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("link the data directory: %w", err)
	}
	for _, dir := range []string{l.KubeletDir(), l.PodLogsDir(), l.VolumesDir()} {
		// Containers run as other users and must reach their volumes; the data directory itself stays closed.
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make the cluster's directories: %w", err)
		}
	}
	return nil
}

// Hint returns the line for a shell that runs a command of this berth on this cluster, for messages to the user.
func (l Layout) Hint(command string) string {
	name := os.Args[0]
	if !strings.Contains(name, "/") || filepath.Base(name) != "berth" { // as kubectl's plugin it has another name
		name = "berth"
	}
	name = shellword.Quote(name)
	if l.DataDir != DefaultDataDir {
		return fmt.Sprintf("%s --data-dir %s %s", name, shellword.Quote(l.DataDir), command)
	}
	return name + " " + command
}
