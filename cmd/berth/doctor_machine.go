package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/up"
)

// examine looks at what `berth up` needs of this machine, and at what it can do without.
func examine(layout up.Layout) []diagnosis {
	return []diagnosis{
		root(), cgroups(), oomScore(), overlay(layout.DataDir), firewall(), confinement(), inotify(),
		room(layout.DataDir), programs(layout),
	}
}

func root() diagnosis {
	if uid := os.Geteuid(); uid != 0 {
		return diagnosis{Name: "root", Severity: broken, Found: fmt.Sprintf("this is uid %d; bridges, mounts and cgroups need root", uid), Mend: "sudo berth doctor"}
	}
	return diagnosis{Name: "root", Severity: fine, Found: "runs as root"}
}

func cgroups() diagnosis {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return diagnosis{Name: "cgroups", Severity: fine, Found: "version 2"}
	}
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err == nil {
		return diagnosis{Name: "cgroups", Severity: lacking, Found: "version 1 (or hybrid): no memory pressure figures, no swap limits",
			Mend: "boot with systemd.unified_cgroup_hierarchy=1 if you want version 2"}
	}
	return diagnosis{Name: "cgroups", Severity: broken, Found: "no cgroup hierarchy is mounted below /sys/fs/cgroup",
		Mend: "mount -t cgroup2 none /sys/fs/cgroup"}
}

func oomScore() diagnosis {
	data, err := os.ReadFile("/proc/self/status")
	if err == nil {
		for line := range strings.Lines(string(data)) {
			var caps uint64
			if n, _ := fmt.Sscanf(line, "CapEff:\t%x", &caps); n == 1 && caps&(1<<unix.CAP_SYS_RESOURCE) != 0 {
				return diagnosis{Name: "CAP_SYS_RESOURCE", Severity: fine, Found: "held: OOM scores can be lowered"}
			}
		}
	}
	return diagnosis{Name: "CAP_SYS_RESOURCE", Severity: lacking,
		Found: "missing: containers keep containerd's OOM score where Kubernetes would lower it", Mend: "run outside the container that drops it"}
}

// overlay looks for the kernel's support only; `berth up` tries it on the data directory's file system.
func overlay(dataDir string) diagnosis {
	data, err := os.ReadFile("/proc/filesystems")
	if err == nil && strings.Contains(string(data), "\toverlay\n") {
		return diagnosis{Name: "overlayfs", Severity: fine, Found: "known to the kernel"}
	}
	return diagnosis{Name: "overlayfs", Severity: lacking, Found: "the kernel does not know it (yet): images are copied for each container below " + dataDir,
		Mend: "modprobe overlay"}
}

func firewall() diagnosis {
	for _, name := range []string{"iptables", "nft"} {
		if path, err := exec.LookPath(name); err == nil {
			return diagnosis{Name: "firewall", Severity: fine, Found: path}
		}
	}
	return diagnosis{Name: "firewall", Severity: broken, Found: "neither iptables nor nft is there, which Pods' networking needs",
		Mend: "apt-get install iptables"}
}

func confinement() diagnosis {
	if data, err := os.ReadFile("/sys/module/apparmor/parameters/enabled"); err == nil && strings.TrimSpace(string(data)) == "Y" {
		return diagnosis{Name: "confinement", Severity: fine, Found: "AppArmor"}
	}
	if _, err := os.Stat("/sys/fs/selinux/enforce"); err == nil {
		return diagnosis{Name: "confinement", Severity: fine, Found: "SELinux"}
	}
	return diagnosis{Name: "confinement", Severity: lacking, Found: "neither AppArmor nor SELinux: containers are confined by namespaces and seccomp alone"}
}

// leastInotify is how many inotify instances many containers easily use up.
const leastInotify = 512

func inotify() diagnosis {
	const limit = "/proc/sys/fs/inotify/max_user_instances"
	data, err := os.ReadFile(limit)
	instances := 0
	if err == nil {
		_, err = fmt.Sscan(string(data), &instances)
	}
	if err != nil {
		return diagnosis{Name: "inotify", Severity: lacking, Found: fmt.Sprintf("%s cannot be read: %v", limit, err)}
	}
	if instances < leastInotify {
		return diagnosis{Name: "inotify", Severity: lacking, Found: fmt.Sprintf("%d instances: many Pods may see \"too many open files\"", instances),
			Mend: fmt.Sprintf("sysctl fs.inotify.max_user_instances=%d", 16*leastInotify)}
	}
	return diagnosis{Name: "inotify", Severity: fine, Found: fmt.Sprintf("%d instances", instances)}
}

// room looks whether the node of a cluster there would say that its disk is full.
func room(dataDir string) diagnosis {
	free, err := up.Room(dataDir)
	if err != nil {
		return diagnosis{Name: "disk", Severity: lacking, Found: err.Error()}
	}
	found := fmt.Sprintf("%.1f GiB free for %s", float64(free)/(1<<30), dataDir)
	if free < up.EnoughRoom {
		return diagnosis{Name: "disk", Severity: lacking, Found: found, Mend: "make room, or choose another --data-dir"}
	}
	return diagnosis{Name: "disk", Severity: fine, Found: found}
}

// programs looks for what `make build` puts beside berth.
func programs(layout up.Layout) diagnosis {
	var missing []string
	for _, name := range append(up.Programs(), kubectlProgram) {
		if info, err := os.Stat(layout.Program(name)); err != nil || info.Mode()&0o111 == 0 {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return diagnosis{Name: "programs", Severity: broken, Found: "missing below " + layout.BinDir + ": " + strings.Join(missing, ", "),
			Mend: "make build"}
	}
	return diagnosis{Name: "programs", Severity: fine, Found: "all there below " + layout.BinDir}
}
