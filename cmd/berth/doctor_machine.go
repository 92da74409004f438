package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/up"
)

// checkMachine checks what `berth up` requires of this machine, and what it works without.
func checkMachine(layout up.Layout) []diagnosis {
	return []diagnosis{
		checkRoot(), checkCgroups(), checkOOMScore(), checkOverlay(layout.DataDir), checkFirewall(), checkConfinement(), checkInotify(),
		checkDiskSpace(layout.DataDir), checkPrograms(layout),
	}
}

func checkRoot() diagnosis {
	if uid := os.Geteuid(); uid != 0 {
		return diagnosis{Name: "root", Severity: severityError, Found: fmt.Sprintf("this is uid %d; bridges, mounts and cgroups need root", uid), Remedy: "sudo berth doctor"}
	}
	return diagnosis{Name: "root", Severity: severityOK, Found: "runs as root"}
}

func checkCgroups() diagnosis {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return diagnosis{Name: "cgroups", Severity: severityOK, Found: "version 2"}
	}
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err == nil {
		return diagnosis{Name: "cgroups", Severity: severityWarning, Found: "version 1 (or hybrid): no memory pressure figures, no swap limits",
			Remedy: "boot with systemd.unified_cgroup_hierarchy=1 if you want version 2"}
	}
	return diagnosis{Name: "cgroups", Severity: severityError, Found: "no cgroup hierarchy is mounted below /sys/fs/cgroup",
		Remedy: "mount -t cgroup2 none /sys/fs/cgroup"}
}

func checkOOMScore() diagnosis {
	data, err := os.ReadFile("/proc/self/status")
	if err == nil {
		for line := range strings.Lines(string(data)) {
			var caps uint64
			if n, _ := fmt.Sscanf(line, "CapEff:\t%x", &caps); n == 1 && caps&(1<<unix.CAP_SYS_RESOURCE) != 0 {
				return diagnosis{Name: "CAP_SYS_RESOURCE", Severity: severityOK, Found: "present: OOM scores can be lowered"}
			}
		}
	}
	return diagnosis{Name: "CAP_SYS_RESOURCE", Severity: severityWarning,
		Found: "missing: containers keep containerd's OOM score where Kubernetes would lower it", Remedy: "run outside the container that drops it"}
}

// checkOverlay checks only the kernel's support; `berth up` tries it on the data directory's file system.
func checkOverlay(dataDir string) diagnosis {
	data, err := os.ReadFile("/proc/filesystems")
	if err == nil && strings.Contains(string(data), "\toverlay\n") {
		return diagnosis{Name: "overlayfs", Severity: severityOK, Found: "supported by the kernel"}
	}
	return diagnosis{Name: "overlayfs", Severity: severityWarning, Found: "not supported by the kernel (or module not loaded): images are copied for each container below " + dataDir,
		Remedy: "modprobe overlay"}
}

func checkFirewall() diagnosis {
	for _, name := range []string{"iptables", "nft"} {
		if path, err := exec.LookPath(name); err == nil {
			return diagnosis{Name: "firewall", Severity: severityOK, Found: path}
		}
	}
	return diagnosis{Name: "firewall", Severity: severityError, Found: "neither iptables nor nft found; Pod networking needs one of them",
		Remedy: "apt-get install iptables"}
}

func checkConfinement() diagnosis {
	if data, err := os.ReadFile("/sys/module/apparmor/parameters/enabled"); err == nil && strings.TrimSpace(string(data)) == "Y" {
		return diagnosis{Name: "confinement", Severity: severityOK, Found: "AppArmor"}
	}
	if _, err := os.Stat("/sys/fs/selinux/enforce"); err == nil {
		return diagnosis{Name: "confinement", Severity: severityOK, Found: "SELinux"}
	}
	return diagnosis{Name: "confinement", Severity: severityWarning, Found: "neither AppArmor nor SELinux: containers are confined by namespaces and seccomp alone"}
}

// minInotifyInstances is the number of inotify instances below which many containers exhaust them.
const minInotifyInstances = 512

func checkInotify() diagnosis {
	const limit = "/proc/sys/fs/inotify/max_user_instances"
	data, err := os.ReadFile(limit)
	instances := 0
	if err == nil {
		_, err = fmt.Sscan(string(data), &instances)
	}
	if err != nil {
		return diagnosis{Name: "inotify", Severity: severityWarning, Found: fmt.Sprintf("failed to read %s: %v", limit, err)}
	}
	if instances < minInotifyInstances {
		return diagnosis{Name: "inotify", Severity: severityWarning, Found: fmt.Sprintf("%d instances: with many Pods, containers may fail with \"too many open files\"", instances),
			Remedy: fmt.Sprintf("sysctl fs.inotify.max_user_instances=%d", 16*minInotifyInstances)}
	}
	return diagnosis{Name: "inotify", Severity: severityOK, Found: fmt.Sprintf("%d instances", instances)}
}

// checkDiskSpace checks whether the Node of a cluster in dataDir would report disk pressure.
func checkDiskSpace(dataDir string) diagnosis {
	free, err := up.FreeBytes(dataDir)
	if err != nil {
		return diagnosis{Name: "disk", Severity: severityWarning, Found: err.Error()}
	}
	found := fmt.Sprintf("%.1f GiB free for %s", float64(free)/(1<<30), dataDir)
	if free < up.EnoughFreeBytes {
		return diagnosis{Name: "disk", Severity: severityWarning, Found: found, Remedy: "free disk space, or choose another --data-dir"}
	}
	return diagnosis{Name: "disk", Severity: severityOK, Found: found}
}

// checkPrograms checks that the programs which `make build` puts beside berth exist.
func checkPrograms(layout up.Layout) diagnosis {
	var missing []string
	for _, name := range append(up.Programs(), kubectlProgram) {
		if info, err := os.Stat(layout.Program(name)); err != nil || info.Mode()&0o111 == 0 {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return diagnosis{Name: "programs", Severity: severityError, Found: "missing below " + layout.BinDir + ": " + strings.Join(missing, ", "),
			Remedy: "make build"}
	}
	return diagnosis{Name: "programs", Severity: severityOK, Found: "all found below " + layout.BinDir}
}
