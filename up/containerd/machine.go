package containerd

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine describes the features of a machine that containerd's config depends on. It does not change while the machine
// is up.
type Machine struct {
	// CgroupV2 is whether /sys/fs/cgroup is the unified hierarchy; else it is v1, or v1 beside v2 ("hybrid").
	CgroupV2 bool
	// RestrictOOMScoreAdj is set where processes may not lower their OOM score (no CAP_SYS_RESOURCE): containers
	// then get at least containerd's own.
	RestrictOOMScoreAdj bool
	// Snapshotter is "overlayfs", or "native" (which copies) where overlays cannot be mounted.
	Snapshotter string
	// AppArmor and SELinux are whether the kernel enforces them.
	AppArmor, SELinux bool
	// Firewall is the program for masquerading and host ports: "iptables" or "nftables".
	Firewall string
}

// Detect detects the features of this machine. root is the directory of containerd's snapshots. Detect creates it if it
// is missing, and mounts an overlay in it for a moment, because not all file systems support overlays.
func Detect(root string) (Machine, error) {
	machine := Machine{
		CgroupV2: exists("/sys/fs/cgroup/cgroup.controllers"),
		AppArmor: fileContains("/sys/module/apparmor/parameters/enabled", "Y"),
		SELinux:  exists("/sys/fs/selinux/enforce"),
	}
	caps, err := effectiveCapabilities("/proc/self/status")
	if err != nil {
		return Machine{}, fmt.Errorf("detect capabilities: %w", err)
	}
	machine.RestrictOOMScoreAdj = caps&(1<<unix.CAP_SYS_RESOURCE) == 0
	machine.Snapshotter, err = detectSnapshotter(root)
	if err != nil {
		return Machine{}, fmt.Errorf("detect overlayfs: %w", err)
	}
	machine.Firewall, err = detectFirewall(exec.LookPath)
	return machine, err
}

// Warnings describes the features that the machine lacks.
func (m Machine) Warnings() []string {
	var warnings []string
	if m.RestrictOOMScoreAdj {
		warnings = append(warnings, "no CAP_SYS_RESOURCE: containers keep containerd's OOM score where Kubernetes would lower it")
	}
	if m.Snapshotter != "overlayfs" {
		warnings = append(warnings, "no overlayfs under the data directory: images are copied for each container")
	}
	if !m.AppArmor && !m.SELinux {
		warnings = append(warnings, "neither AppArmor nor SELinux: containers are confined by namespaces and seccomp alone")
	}
	return warnings
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

func fileContains(name, want string) bool {
	data, err := os.ReadFile(name)
	return err == nil && strings.TrimSpace(string(data)) == want
}

// effectiveCapabilities reads the CapEff line of a /proc/PID/status.
func effectiveCapabilities(name string) (uint64, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			return strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		}
	}
	return 0, fmt.Errorf("%s has no line CapEff", name)
}

// detectFirewall prefers iptables, whose rules most machines already have.
func detectFirewall(lookPath func(string) (string, error)) (string, error) {
	if _, err := lookPath("iptables"); err == nil {
		return "iptables", nil
	}
	if _, err := lookPath("nft"); err == nil {
		return "nftables", nil
	}
	return "", errors.New("the pod network needs iptables or nft, and neither was found: apt-get install iptables")
}

// detectSnapshotter mounts an overlay below root the way a container's root is one.
func detectSnapshotter(root string) (_ string, err error) {
	if err := os.MkdirAll(root, 0o711); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(root, ".overlay-*")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			return "", err
		}
	}
	merged := filepath.Join(dir, "merged")
	options := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", dir)
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		return "native", nil // It only needs directories, which every file system has.
	}
	if err := unix.Unmount(merged, unix.MNT_DETACH); err != nil {
		return "", fmt.Errorf("unmount the test overlay in %q: %w", dir, err)
	}
	return "overlayfs", nil
}
