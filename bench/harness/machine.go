package harness

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
)

// Machine describes where a benchmark ran.
type Machine struct {
	CPU    string  `json:"cpu"`
	Cores  int     `json:"cores"`
	MemMiB float64 `json:"memMiB"`
	Kernel string  `json:"kernel"`
	Cgroup string  `json:"cgroup"`
	OS     string  `json:"os"`
}

// ThisMachine describes the machine that the process runs on; what is unknown stays empty.
func ThisMachine() Machine {
	m := Machine{Cores: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH, Cgroup: "v1"}
	m.CPU = field("/proc/cpuinfo", "model name")
	if kib, err := strconv.ParseFloat(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB"), 64); err == nil {
		m.MemMiB = float64(int(kib / 1024))
	}
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(text))
	}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		m.Cgroup = "v2"
	}
	return m
}

// field finds "name : value" in a file of the kernel.
func field(path, name string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		key, value, found := strings.Cut(lines.Text(), ":")
		if found && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// LoadAverage is the machine's load average of the last minute, 0 if it cannot be read.
func LoadAverage() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0
	}
	return load
}

// measuredModules are the modules whose versions belong to the results.
var measuredModules = map[string]bool{
	"k8s.io/kubernetes":                                    true,
	"k8s.io/client-go":                                     true,
	"sigs.k8s.io/controller-runtime":                       true,
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13": true,
}

// Versions names what this program is made of.
func Versions(ctx context.Context) map[string]string {
	versions := map[string]string{"go": strings.TrimPrefix(runtime.Version(), "go")}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Replace != nil {
				dep = &debug.Module{Path: dep.Path, Version: dep.Replace.Version}
			}
			if measuredModules[dep.Path] {
				versions[dep.Path] = dep.Version
			}
		}
	}
	if commit := commit(ctx); commit != "" {
		versions["berth"] = commit
	}
	return versions
}

// commit names what is checked out, with a mark if anything is changed but for the documents, which hold the results
// and change while benchmarks run. Empty if git does not know it.
func commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--abbrev=9").Output()
	if err != nil {
		return ""
	}
	name := strings.TrimSpace(string(out))
	if exec.CommandContext(ctx, "git", "diff", "--quiet", "HEAD", "--", ":(top)", ":(top,exclude)docs").Run() != nil {
		name += "-dirty"
	}
	return name
}
