package testproc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/loopdev"
)

// Resources name what a test creates outside of its own process. The names must not match resources of others.
type Resources struct {
	// Dirs are absolute. Cleanup also kills the processes whose command lines name one, unmounts what is mounted below, and
	// detaches loop devices of files in them.
	Dirs []string
	// Cgroups are names of top-level cgroups. Cleanup also kills the processes in them.
	Cgroups []string
	// Links are network interfaces, and named network namespaces. Cleanup also removes the firewall's rules that name one,
	// and the CNI plugins' chains that these lead to.
	Links []string
	// Files are patterns of filepath.Glob.
	Files []string
}

// Cleanup removes the resources that exist, and returns the errors. It waits up to timeout for each killed process.
func (l Resources) Cleanup(ctx context.Context, timeout time.Duration) error {
	if err := l.killProcesses(timeout); err != nil {
		return err
	}
	var errs []error
	for _, dir := range l.Dirs {
		errs = append(errs, removeDir(dir))
	}
	for _, name := range l.Cgroups {
		for _, group := range cgroupDirs(name) {
			errs = append(errs, removeCgroup(group))
		}
	}
	errs = append(errs, l.removeFirewallRules(ctx))
	for _, name := range l.Links {
		errs = append(errs, removeLink(ctx, name))
	}
	for _, pattern := range l.Files {
		found, err := filepath.Glob(pattern)
		errs = append(errs, err)
		for _, file := range found {
			errs = append(errs, os.RemoveAll(file))
		}
	}
	return errors.Join(errs...)
}

// killProcesses kills the processes until there are none: some restart others.
func (l Resources) killProcesses(timeout time.Duration) error {
	for pids := l.Processes(); len(pids) > 0; pids = l.Processes() {
		for _, pid := range pids {
			if err := killAndWait(pid, timeout); err != nil {
				return err
			}
		}
	}
	return nil
}

// Processes returns the processes that Cleanup kills. This process is never among them.
func (l Resources) Processes() []int {
	var found []int
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is right
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		if _, err := os.Readlink(filepath.Join(dir, "exe")); err != nil {
			continue // a zombie
		}
		command, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // it may end meanwhile
		groups, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		if slices.ContainsFunc(l.Dirs, func(dir string) bool { return bytes.Contains(command, []byte(dir)) }) ||
			slices.ContainsFunc(l.Cgroups, func(name string) bool { return inCgroup(groups, name) }) {
			found = append(found, pid)
		}
	}
	return found
}

// inCgroup reports whether the content of a /proc/PID/cgroup has a cgroup of that name.
func inCgroup(groups []byte, name string) bool {
	return bytes.Contains(groups, []byte("/"+name+"/")) || bytes.Contains(groups, []byte("/"+name+"\n"))
}

// removeDir unmounts what is mounted below a directory and removes it. It does not delete data behind a mount.
func removeDir(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("list the mounts below %s: %w", dir, err)
	}
	slices.SortFunc(mounts, func(a, b *mountinfo.Info) int { return strings.Compare(b.Mountpoint, a.Mountpoint) }) // innermost first
	for _, mount := range mounts {
		if err := unix.Unmount(mount.Mountpoint, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", mount.Mountpoint, err)
		}
	}
	return errors.Join(loopdev.New().DetachBelow(dir), os.RemoveAll(dir))
}

// cgroupDirs returns the directories of a top-level cgroup in all hierarchies.
func cgroupDirs(name string) []string {
	found, _ := filepath.Glob("/sys/fs/cgroup/*/" + name) // the pattern is right
	return append(found, "/sys/fs/cgroup/"+name)
}

// removeCgroup removes a cgroup and its descendants.
func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, entry := range entries {
		if entry.IsDir() {
			errs = append(errs, removeCgroup(filepath.Join(dir, entry.Name())))
		}
	}
	return errors.Join(append(errs, os.Remove(dir))...)
}

func removeLink(ctx context.Context, name string) error {
	var errs []error
	if _, err := os.Stat("/sys/class/net/" + name); err == nil {
		errs = append(errs, run(ctx, "ip", "link", "delete", name))
	}
	if _, err := os.Stat("/run/netns/" + name); err == nil {
		errs = append(errs, run(ctx, "ip", "netns", "delete", name))
	}
	return errors.Join(errs...)
}

func run(ctx context.Context, program string, args ...string) error {
	if out, err := exec.CommandContext(ctx, program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, out)
	}
	return nil
}

// FirewallRules returns the rules of iptables' nat table that name one of the links, as `iptables -S` lists them: as the
// arguments that add them. Without iptables there are none.
func (l Resources) FirewallRules(ctx context.Context) ([]string, error) {
	if _, err := exec.LookPath("iptables"); err != nil || len(l.Links) == 0 {
		return nil, nil //nolint:nilerr // no iptables, no rules of it
	}
	out, err := exec.CommandContext(ctx, "iptables", "-w", "60", "-t", "nat", "-S").Output()
	if err != nil {
		return nil, fmt.Errorf("list the firewall's rules: %w", err)
	}
	var quoted, found []string
	for _, name := range l.Links {
		quoted = append(quoted, regexp.QuoteMeta(name))
	}
	names := regexp.MustCompile(`\b(?:` + strings.Join(quoted, "|") + `)\b`)
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); names.MatchString(line) {
			found = append(found, line)
		}
	}
	return found, nil
}

// podChain matches the chains that CNI plugins create for one Pod. Chains with HOSTPORT in their names are shared.
var podChain = regexp.MustCompile(`\bCNI-(?:DN-|SN-)?[0-9a-f]{20,}\b`)

// removeFirewallRules removes the rules, and the Pods' chains that contain them or that they jump to.
func (l Resources) removeFirewallRules(ctx context.Context) error {
	rules, err := l.FirewallRules(ctx)
	errs := []error{err}
	chains := make(map[string]bool)
	// A shell splits the arguments, because some are quoted.
	iptables := func(args string) error { return run(ctx, "/bin/sh", "-c", "iptables -w 60 -t nat "+args) }
	for _, rule := range rules {
		for _, chain := range podChain.FindAllString(rule, -1) {
			chains[chain] = true
		}
		if args := strings.Fields(rule); !podChain.MatchString(args[1]) {
			errs = append(errs, iptables("-D"+strings.TrimPrefix(rule, "-A")))
		}
	}
	for chain := range chains {
		errs = append(errs, iptables("-F "+chain), iptables("-X "+chain))
	}
	return errors.Join(errs...)
}
