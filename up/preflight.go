package up

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Programs are what a cluster runs, below Config.BinDir; `make build` puts them next to berth.
func Programs() []string {
	return []string{
		"berth-controlplane", "containerd", "containerd-shim-runc-v2", "runc",
		"cni/bridge", "cni/host-local", "cni/portmap", "cni/loopback", "images/pause",
	}
}

// preflight looks for everything that would make the start fail later and less clearly. All that is wrong is
// told at once.
func (l Layout) preflight() error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("berth up runs on Linux only, this is %s: use a Linux machine or a virtual machine", runtime.GOOS)
	}
	if uid := os.Geteuid(); uid != 0 {
		return fmt.Errorf("berth up makes network bridges, mounts and cgroups, so it must run as root (now uid %d): use sudo", uid)
	}
	errs := []error{l.checkPrograms(), l.checkDiskSpace(minFreeBytes)}
	_, iptables := exec.LookPath("iptables")
	if _, nft := exec.LookPath("nft"); iptables != nil && nft != nil {
		errs = append(errs, errors.New("iptables is missing, which Pods' networking needs: apt-get install iptables"))
	}
	if _, err := os.Stat("/proc/self/cgroup"); err != nil {
		errs = append(errs, fmt.Errorf("this kernel has no cgroups: %w", err))
	}
	if longest := l.ContainerdSocket() + ".ttrpc"; len(longest) > 107 {
		errs = append(errs, fmt.Errorf("the socket path %s is longer than the 107 bytes that the kernel allows", longest))
	}
	return errors.Join(errs...)
}

// minFreeBytes is what a new cluster's disk has to have free. etcd alone sets 64 MiB aside for its log before it starts.
const minFreeBytes = 128 << 20

// EnoughFreeBytes is how many bytes free on the disk of the data directory are enough for Pods. A machine of its own gives
// Kubernetes its disk and wants a tenth of it free; a laptop's or a CI runner's is full of other things.
const EnoughFreeBytes = 2 << 30

// checkDiskSpace fails if a new cluster would not find room. One that is there already has set its own aside.
func (l Layout) checkDiskSpace(least uint64) error {
	if l.isInitialized() {
		return nil
	}
	free, err := FreeBytes(l.DataDir)
	if err != nil {
		return fmt.Errorf("look how much room --data-dir has: %w", err)
	}
	if free < least {
		return fmt.Errorf("--data-dir %s has %d MiB free, and a new cluster needs %d MiB before its first Pod: make room, or "+
			"choose another directory", l.DataDir, free>>20, least>>20)
	}
	return nil
}

// FreeBytes is how many bytes are free where dir is, or would be.
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

// checkPrograms looks for the programs that berth runs beside itself.
func (l Layout) checkPrograms() error {
	var missing []string
	var errs []error
	for _, name := range Programs() {
		path := l.Program(name)
		if info, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, name)
		} else if err != nil {
			errs = append(errs, fmt.Errorf("look for program %s: %w", path, err))
		} else if info.Mode()&0o111 == 0 {
			errs = append(errs, fmt.Errorf("program %s is not executable: run `make build` again", path))
		}
	}
	if len(missing) > 0 {
		errs = append(errs, fmt.Errorf("there is no %s in %s: run `make build`, or set --bin-dir",
			strings.Join(missing, ", "), l.BinDir))
	}
	return errors.Join(errs...)
}

// checkPorts fails if something else already listens where the cluster must.
func (l Layout) checkPorts() error {
	return errors.Join(
		checkPort(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(l.APIPort)), "--api-port"),
		checkPort(netip.AddrPortFrom(l.Gateway, uint16(l.APIPort)), "--api-port"),
		checkPort(netip.AddrPortFrom(l.Gateway, kubeletPort), "kubelet"),
	)
}

// makeDirectories makes what the parts expect, once the data directory is known to be ours. Only root may look into that.
// The run directory can be passed, not listed: root of a Pod's user namespace gets to its root file system through it.
func (l Layout) makeDirectories() error {
	if err := os.MkdirAll(l.RunDir, 0o711); err != nil {
		return fmt.Errorf("make the cluster's directories: %w", err)
	}
	for _, dir := range []string{l.KubeletDir(), l.PodLogsDir(), l.VolumesDir()} {
		// Containers run as other users and must get to their volumes; the data directory itself stays closed.
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make the cluster's directories: %w", err)
		}
	}
	return nil
}

// Hint is how to call this berth for this cluster, for the lines that tell a person what to type.
func (l Layout) Hint(command string) string {
	name := os.Args[0]
	if !strings.Contains(name, "/") || filepath.Base(name) != "berth" { // as kubectl's plugin it has another name
		name = "berth"
	}
	if l.DataDir != DefaultDataDir {
		return fmt.Sprintf("%s --data-dir %s %s", name, l.DataDir, command)
	}
	return name + " " + command
}
