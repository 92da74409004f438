package up

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/filelock"
)

// The oldest kernel and nft that kube-proxy's mode nftables supports.
var (
	minKernel = [3]int{5, 13, 0}
	minNFT    = [3]int{1, 0, 1}
)

// CheckServices fails if this machine lacks what Services need: a kernel and a program nft that kube-proxy supports.
func CheckServices(ctx context.Context) error {
	const advice = ", or start with --without " + proxyName
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return fmt.Errorf("read the kernel's version: %w", err)
	}
	kernel := unix.ByteSliceToString(name.Release[:])
	if version, ok := parseVersion(kernel); ok && isOlder(version, minKernel) {
		return fmt.Errorf("the kernel %s is too old for Services, which need %s: boot a newer one%s", kernel, printVersion(minKernel), advice)
	}
	program, err := exec.LookPath("nft")
	if err != nil {
		return errors.New("nft not found, which Services need: apt-get install nftables" + advice)
	}
	out, err := exec.CommandContext(ctx, program, "--version").CombinedOutput() // "nftables v1.0.6 (Lester Gooch #5)"
	if err != nil {
		return fmt.Errorf("nft, which Services need, does not run: %s --version: %w: %s", program, err, bytes.TrimSpace(out))
	}
	if version, ok := parseVersion(strings.TrimPrefix(strings.TrimPrefix(string(out), "nftables "), "v")); ok && isOlder(version, minNFT) {
		return fmt.Errorf("%s has version %s, which is too old for Services, which need %s: upgrade nftables%s", program,
			printVersion(version), printVersion(minNFT), advice)
	}
	return nil
}

// parseVersion parses the two or three numbers at the beginning of the text.
func parseVersion(text string) (version [3]int, ok bool) {
	n, _ := fmt.Sscanf(text, "%d.%d.%d", &version[0], &version[1], &version[2]) // the third number may be missing
	return version, n >= 2
}

func isOlder(version, than [3]int) bool {
	for i := range version {
		if version[i] != than[i] {
			return version[i] < than[i]
		}
	}
	return false
}

func printVersion(version [3]int) string {
	return strings.TrimSuffix(fmt.Sprintf("%d.%d.%d", version[0], version[1], version[2]), ".0")
}

// lockProxy claims the kube-proxy table of this network namespace until the file is closed. It fails if another cluster or
// a kube-proxy of another origin has it.
func (l Layout) lockProxy(ctx context.Context) (*os.File, error) {
	const advice = adviceIsolated + ", or with --without " + proxyName + ", or stop the other one"
	path, err := proxyLockPath()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return nil, fmt.Errorf("lock the firewall's table %s: %w", proxyTable, err)
	}
	_, statErr := os.Stat(path)
	file, err := filelock.Acquire(path)
	if held := (*filelock.HeldError)(nil); errors.As(err, &held) {
		owner, _ := os.ReadFile(path) // the message is less specific without it
		return nil, fmt.Errorf("another cluster on this machine forwards to its Services (%s, %s), and kube-proxy allows one in a "+
			"network namespace: %s", bytes.TrimSpace(owner), held.Holder(), advice)
	}
	if err != nil {
		return nil, fmt.Errorf("lock the firewall's table %s: %w", proxyTable, err)
	}
	if errors.Is(statErr, os.ErrNotExist) {
		if err := foreignProxyTable(ctx, advice); err != nil {
			return nil, errors.Join(err, os.Remove(path), file.Close())
		}
	}
	if err := errors.Join(file.Truncate(0), writeAt(file, l.DataDir+"\n")); err != nil {
		return nil, errors.Join(fmt.Errorf("lock the firewall's table %s: %w", proxyTable, err), file.Close())
	}
	return file, nil
}

func writeAt(file *os.File, text string) error {
	_, err := file.WriteAt([]byte(text), 0)
	return err
}

// proxyLockPath is the lock of this network namespace. It lies beside the run directories of the clusters.
func proxyLockPath() (string, error) {
	var stat unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &stat); err != nil {
		return "", fmt.Errorf("identify the network namespace: %w", err)
	}
	return filepath.Join("/run/berth", fmt.Sprintf("%s-%d.lock", proxyName, stat.Ino)), nil
}

// foreignProxyTable returns an error if the firewall has a table of a kube-proxy, which no cluster of berth has claimed, or
// cannot have one.
func foreignProxyTable(ctx context.Context, advice string) error {
	tables, err := listTables(ctx)
	if err != nil {
		return fmt.Errorf("the kernel has no nftables, which Services need (module nf_tables): %w: load the module, or "+
			"start with --without %s", err, proxyName)
	}
	for table := range tables {
		if table.name == proxyTable {
			return fmt.Errorf("the firewall has a table %s that berth did not create: a kube-proxy of another cluster runs on this machine "+
				"(%s): %s", proxyTable, foreignProxy("/proc"), advice)
		}
	}
	return nil
}

// proxyPrograms are programs that write kube-proxy's table, and kubelets, whose cluster has one.
var proxyPrograms = []string{proxyName, "kubelet", "kubelite", "k3s", "k0s", "rke2"}

// foreignProxy names the process in this network namespace that most likely writes kube-proxy's table.
func foreignProxy(proc string) string {
	own, _ := os.Readlink(filepath.Join(proc, "self/ns/net"))
	best, found := len(proxyPrograms), "none of its processes is visible; `nft delete table ip kube-proxy` removes what one has left"
	dirs, _ := filepath.Glob(filepath.Join(proc, "[0-9]*")) // the pattern is right
	for _, dir := range dirs {
		command, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue // it has ended
		}
		argv := strings.Split(string(command), "\x00")
		program := filepath.Base(argv[0])
		if len(argv) > 1 && program == "berth-controlplane" {
			program = argv[1]
		}
		for rank, name := range proxyPrograms[:best] {
			if program != name && !strings.HasPrefix(program, name+"-") {
				continue
			}
			if namespace, _ := os.Readlink(filepath.Join(dir, "ns/net")); namespace == own {
				best, found = rank, fmt.Sprintf("%s, process %s", program, filepath.Base(dir))
				break
			}
		}
	}
	return found
}
