package containerd

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode"
)

// Config says where one cluster's containerd lives and what its Pods' network is. All paths are absolute.
//
// It has many methods because all that is done to a containerd from outside depends on nothing but these values.
type Config struct {
	// BinDir holds containerd, its shims and runc.
	BinDir string
	// Runtime is the runtime of Pods without a RuntimeClass, one of [Runtimes]; empty for the first. The others serve the RuntimeClasses
	// whose handlers have their names.
	Runtime string
	// CNIBinDir holds the CNI plugins berth and portmap, and for StandardPlugins bridge and host-local.
	CNIBinDir string
	// Root is containerd's persistent directory: images, snapshots, metadata.
	Root string
	// RunDir holds the socket, and below it what ends with the machine's uptime: containerd's state, runc's,
	// network namespaces, shims' sockets and the pod addresses given out. Short: see [Config.Write].
	RunDir string
	// CNIConfDir is where the pod network's configuration is written. It is the cluster's own directory.
	CNIConfDir string
	// SandboxImage is the name of the image that holds a Pod's namespaces. It is imported, never pulled.
	SandboxImage string
	// Bridge is the pod bridge's interface name, at most 15 bytes, and the name of the CNI network.
	Bridge string
	// PodCIDR is the IPv4 network of the Pods' addresses.
	PodCIDR netip.Prefix
	// ClusterCIDR has the Pods of all nodes, which Pods reach with their own addresses; invalid if there are no other nodes.
	ClusterCIDR netip.Prefix
	// Gateway is the bridge's own address in PodCIDR. No Pod gets it, nor an address before it.
	Gateway netip.Addr
	// PodCIDR6 and Gateway6 are the same of IPv6. They are invalid if Pods have no IPv6 addresses.
	PodCIDR6 netip.Prefix
	Gateway6 netip.Addr
	// ClusterMasquerade says that the caller uses [Config.Masquerade] for the whole network; without, the bridge
	// plugin masquerades Pod by Pod.
	ClusterMasquerade bool
	// AddressFilter says that the caller has installed package addressfilter's table of the bridge, so that the CNI plugin
	// berth keeps the Pods to their own addresses.
	AddressFilter bool
	// StandardPlugins lets Pods of [RuntimeRunc] get their network from the programs bridge, host-local and portmap, as with other
	// kubelets; without AddressFilter. Benchmarks compare with that.
	StandardPlugins bool
	// RegistryConfig is the directory of Registries. Default: certs.d in Root.
	RegistryConfig string
	// SystemdCgroup lets systemd make the Pods' cgroups; the CRI client must then name slices as cgroup parents.
	SystemdCgroup bool
	// UnsafeNoSync lets images count as unpacked before their files are on the disk, where a power failure may lose them: for tests.
	UnsafeNoSync bool
	// Machine is what this machine has, from [Detect].
	Machine Machine
}

// socketName is short, and fixed so that others may look for it in the run directory.
const socketName = "containerd.sock"

// longestShimDir is what containerd allows: a shim's socket adds 64 hex digits, and a socket's path ends at 107.
const longestShimDir = 40

// Socket is where containerd answers, CRI and its own API. Only root may connect.
func (c Config) Socket() string { return filepath.Join(c.RunDir, socketName) }

// State is containerd's directory for what ends with the uptime. Mounts and network namespaces lie below it.
func (c Config) State() string { return filepath.Join(c.RunDir, "containerd") }

// File is containerd's configuration file.
func (c Config) File() string { return filepath.Join(c.RunDir, "containerd.toml") }

// Registries is the directory in which people may describe registries, as containerd's hosts.toml files.
func (c Config) Registries() string {
	if c.RegistryConfig != "" {
		return c.RegistryConfig
	}
	return filepath.Join(c.Root, "certs.d")
}

// NetworkCache matches the files in which the CNI library remembers this cluster's Pods. It has no setting for
// their place; they end with their Pods, and are safe to remove once no Pod of the cluster is left.
func (c Config) NetworkCache() string { return "/var/lib/cni/results/" + c.Bridge + "-*" }

// The runtimes of a node's Pods, and the handlers of their RuntimeClasses.
const (
	// RuntimeRunc is containerd's own shim, which runs the program runc for each step of a container.
	RuntimeRunc = "runc"
	// RuntimeBerth is Berth's shim, which has runc's library in its process.
	RuntimeBerth = "berth"
)

// Runtimes lists the runtimes; the first is the default.
func Runtimes() []string { return []string{RuntimeBerth, RuntimeRunc} }

// ShimProgram is the name of a runtime's program.
func ShimProgram(runtime string) string {
	if runtime == RuntimeBerth {
		return "containerd-shim-berth-v1"
	}
	return "containerd-shim-runc-v2"
}

func (c Config) defaultRuntime() string {
	if c.Runtime == "" {
		return Runtimes()[0]
	}
	return c.Runtime
}

func (c Config) shimDir() string { return filepath.Join(c.RunDir, "s") }

// StopSignal is the signal that ends containerd. It is not asked to end itself: when it is asked while it starts, it gives up
// connecting to its shims, takes those for dead whose turn it is, and kills their Pods (loadShim and
// cleanupAfterDeadShim in core/runtime/v2). What it keeps is made to outlive SIGKILL at any moment.
const StopSignal = syscall.SIGKILL

// Command is how containerd is started: the arguments with the program first, and what to add to the environment.
// [StopSignal] ends it; the shims, and the Pods with them, go on until they are stopped over CRI.
func (c Config) Command() (argv, env []string) {
	argv = []string{filepath.Join(c.BinDir, "containerd"), "--config", c.File()}
	// containerd finds the shim, and the network plugins find iptables, along PATH.
	path := strings.Join([]string{c.BinDir, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"},
		string(filepath.ListSeparator))
	return argv, []string{"PATH=" + path}
}

func (c Config) validate() error {
	for _, field := range []struct{ name, path string }{
		{"BinDir", c.BinDir}, {"CNIBinDir", c.CNIBinDir}, {"Root", c.Root}, {"RunDir", c.RunDir},
		{"CNIConfDir", c.CNIConfDir},
	} {
		if !filepath.IsAbs(field.path) || filepath.Clean(field.path) != field.path {
			return fmt.Errorf("field %s: %q is not a clean absolute path", field.name, field.path)
		}
		if strings.ContainsFunc(field.path, func(r rune) bool { return !unicode.IsPrint(r) || r == filepath.ListSeparator }) {
			return fmt.Errorf("field %s: %q has a character that a path list cannot hold", field.name, field.path)
		}
	}
	if dir := c.shimDir(); len(dir) > longestShimDir {
		return fmt.Errorf("field RunDir: %q is %d bytes too long for the sockets below it", c.RunDir, len(dir)-longestShimDir)
	}
	if !slices.Contains(Runtimes(), c.defaultRuntime()) {
		return fmt.Errorf("field Runtime: %q is none of %s", c.Runtime, strings.Join(Runtimes(), ", "))
	}
	if c.SandboxImage == "" || strings.ContainsFunc(c.SandboxImage, unicode.IsSpace) {
		return fmt.Errorf("field SandboxImage: %q is not the name of an image", c.SandboxImage)
	}
	if len(c.Bridge) == 0 || len(c.Bridge) > 15 || strings.ContainsAny(c.Bridge, "/ \t\n") {
		return fmt.Errorf("field Bridge: %q is not an interface name of 1 to 15 bytes", c.Bridge)
	}
	if !c.PodCIDR.IsValid() || !c.PodCIDR.Addr().Is4() || c.PodCIDR != c.PodCIDR.Masked() || c.PodCIDR.Bits() > 29 {
		return fmt.Errorf("field PodCIDR: %s is not an IPv4 network of /29 or wider", c.PodCIDR)
	}
	if !c.PodCIDR.Contains(c.Gateway) || c.Gateway == c.PodCIDR.Addr() {
		return fmt.Errorf("field Gateway: %s is not an address of a machine in %s", c.Gateway, c.PodCIDR)
	}
	if c.PodCIDR6.IsValid() && (!c.PodCIDR6.Contains(c.Gateway6) || c.Gateway6.Is4()) {
		return fmt.Errorf("field Gateway6: %s is not an IPv6 address of a machine in %s", c.Gateway6, c.PodCIDR6)
	}
	if c.Machine.Snapshotter == "" {
		return fmt.Errorf("field Machine.Snapshotter: empty: fill Machine with Detect")
	}
	if c.ClusterMasquerade && c.Machine.Firewall != "iptables" {
		return fmt.Errorf("field ClusterMasquerade: needs iptables, and this machine has %q", c.Machine.Firewall)
	}
	return nil
}
