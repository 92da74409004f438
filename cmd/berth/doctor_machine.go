package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/kernelmodule"
	"github.com/berth-dev/berth/up"
	"github.com/berth-dev/berth/up/containerd"
)

// checkMachine checks what `berth up` requires of this machine, and what it works without.
func checkMachine(ctx context.Context, layout up.Layout) []diagnosis {
	return []diagnosis{
		checkRoot(), checkCgroups(), checkOOMScore(), checkModules(ctx, up.KernelModules()), checkFirewall(), checkForwarding(ctx, layout.APIPort), checkServices(ctx), checkConfinement(), checkInotify(),
		checkDiskSpace(layout.DataDir), checkDamagedFiles(layout), checkPrograms(layout), checkRuntimes(layout),
	}
}

// checkRuntimes says which runtimes run the Pods of the cluster.
func checkRuntimes(layout up.Layout) diagnosis {
	count, err := containerd.CountPods(layout.ContainerdSocket())
	if err != nil {
		return diagnosis{Name: "runtimes", Severity: severityWarning, Found: fmt.Sprintf("not known: %v", err)}
	}
	var found []string
	for _, runtime := range containerd.Runtimes() {
		found = append(found, fmt.Sprintf("%d with %s (%s)", count[runtime], runtime, containerd.ShimProgram(runtime)))
	}
	return diagnosis{Name: "runtimes", Severity: severityOK, Found: "running Pods of " + layout.DataDir + ": " + strings.Join(found, ", ")}
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

// checkModules checks the kernel's modules. `berth up` loads those that are missing, where that is possible.
func checkModules(ctx context.Context, modules []kernelmodule.Module) diagnosis {
	var loadable, restrictions []string
	for _, module := range modules {
		if !module.IsMissing() {
			continue
		}
		if err := module.CheckLoadable(ctx); err != nil {
			restrictions = append(restrictions, fmt.Sprintf("without %s %s (%v)", module.Name, module.Without, err))
			continue
		}
		loadable = append(loadable, module.Name)
	}
	d := diagnosis{Name: "kernel modules", Severity: severityOK, Found: "all found"}
	if len(loadable) > 0 {
		d.Found = strings.Join(loadable, ", ") + ": not loaded; `berth up` loads them"
	}
	if len(restrictions) > 0 {
		d.Severity, d.Remedy = severityWarning, "apt-get install kmod, and the package with the modules of this kernel; in a container, load them on its host"
		if len(loadable) > 0 {
			restrictions = append(restrictions, d.Found)
		}
		d.Found = strings.Join(restrictions, "; ")
	}
	return d
}

// checkServices checks what kube-proxy needs.
func checkServices(ctx context.Context) diagnosis {
	if err := up.CheckServices(ctx); err != nil {
		return diagnosis{Name: "services", Severity: severityError, Found: err.Error()}
	}
	return diagnosis{Name: "services", Severity: severityOK, Found: "the kernel and nft are new enough"}
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
