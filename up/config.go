package up

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	securejoin "github.com/cyphar/filepath-securejoin"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-dev/berth/internal/freeport"
	"github.com/berth-dev/berth/internal/programs"
	"github.com/berth-dev/berth/kubelet/eviction"
	"github.com/berth-dev/berth/kubelet/nodeshutdown"
	"github.com/berth-dev/berth/up/containerd"
	"github.com/berth-dev/berth/up/kubeletfile"
)

// Defaults of the flags of `berth up`.
const (
	DefaultDataDir     = "/var/lib/berth"
	DefaultPodCIDR     = "10.85.0.0/16"
	DefaultServiceCIDR = "10.86.0.0/16"
	DefaultAPIPort     = 6443
	// DefaultRegistryConfig is where an administrator describes registries; it need not exist.
	DefaultRegistryConfig = "/etc/berth/certs.d"
)

// Config configures a cluster. The zero value of a field means its default. It has many fields because most are flags.
type Config struct {
	// DataDir has everything that outlives the process. It may be relative or contain symbolic links; Complete resolves it
	// to the kernel's path, by which mounts, loop devices and locks are found.
	DataDir string
	// BinDir holds berth-controlplane, containerd and their companions. Default: that of programs.Dir.
	BinDir string
	// NodeName is the name of this machine's Node. Default: the host name, lower-cased.
	NodeName string
	// PodCIDR and ServiceCIDR are IPv4 prefixes that do not overlap, each followed by a comma and an IPv6 prefix in a cluster with
	// both families. The first address of PodCIDR becomes the
	// pod bridge's and the Node's.
	PodCIDR     string
	ServiceCIDR string
	// APIPort is the API server's port on loopback and on the pod bridge.
	APIPort int
	// PagePort is the port of the page on loopback, if it is free; else, and for 0, another one is chosen.
	PagePort int
	// Isolated gives the cluster network, mount, PID, IPC and UTS namespaces of its own.
	Isolated bool
	// APIAddress is an IPv4 address of this machine on which the API server and the kubelet listen, too, so that other machines
	// can join. It is the Node's address then; without it, the pod bridge's is. In a cluster with both families a comma and an
	// IPv6 address may follow, by which the other machines reach this machine's Pods.
	APIAddress string
	// LoadBalancerCIDR is the range of the addresses of Services of type LoadBalancer; empty if they get the Nodes'.
	LoadBalancerCIDR string
	// Server is the URL of the API server of the cluster that this machine has joined, NodePodCIDR the node's parts of
	// PodCIDR there, with a comma between them. Both are empty for a cluster of its own, whose first node has the first part.
	Server, NodePodCIDR string
	// ExternalRuntime is set on a machine whose container runtime and Pod network are not Berth's.
	ExternalRuntime bool
	// StaticPods is a manifest, or a directory of manifests, of static Pods; empty for none. It may be relative; Complete
	// makes it absolute.
	StaticPods string
	// ResolvConf names the name servers for names of the outside. Default: /etc/resolv.conf, and for Pods the servers behind
	// the stub of systemd-resolved. It may be relative; Complete makes it absolute.
	ResolvConf string
	// KubeletRoot is the directory of Pods' files and volumes, which no other kubelet may use. Drivers of volumes that run in Pods mostly
	// expect /var/lib/kubelet. Empty: it is below DataDir.
	KubeletRoot string
	// RegistryConfig is the directory with the mirrors and certificates of registries, as containerd's certs.d: below it, a
	// directory for each registry has a file hosts.toml. Default: DefaultRegistryConfig if that exists and
	// containerd/certs.d in DataDir does not, else the latter, which may come later. It may be relative; Complete makes it absolute.
	RegistryConfig string
	// KubeletConfig is a KubeletConfiguration with the fields that kubeletfile.Read allows; empty for none. It may be relative;
	// Complete makes it absolute. The kubelet reads it at each start.
	KubeletConfig string
	// Runtime is the runtime of Pods without a RuntimeClass, one of containerd.Runtimes; empty for the first.
	Runtime string
	// SeccompDefault gives containers that name no seccomp profile the runtime's default one.
	SeccompDefault bool
	// Hardened refuses Pods that are not restricted, and Services with external addresses.
	Hardened bool
	// RuntimeConfig turns versions and resources of the API on and off, and FeatureGates features of Kubernetes in the control
	// plane: NAME=true or NAME=false each.
	RuntimeConfig, FeatureGates map[string]string
	// Resources says which resources of the machine Pods may use.
	Resources ResourceConfig
	// Eviction says when the node is short of a resource and evicts Pods. A nil Hard means the thresholds of Kubernetes, but at
	// most EnoughFreeBytes of a disk.
	Eviction eviction.Config
	// ShutdownPeriods are how long Pods have to end when the machine shuts down, by priority. Without any its shutdown does not wait
	// for this cluster but as systemd waits for any service.
	ShutdownPeriods []nodeshutdown.Period
	// UnsafeNoFsync lets etcd and containerd skip fsync: for tests on slow disks, where a power failure may lose the cluster.
	UnsafeNoFsync bool
	// StartLock is a file that other clusters have locked, shared, until their Nodes are ready. What this one starts after its Node waits for
	// them, shortly. Empty: it waits for none.
	StartLock string
	// CertificateLifetime is how long the cluster's certificates are valid; 0 for a year. They are renewed while it runs.
	CertificateLifetime time.Duration
	// Verbosity is the klog verbosity of the control plane.
	Verbosity int
}

// Complete fills in the defaults and validates the config. Its errors name the flag to correct.
func (c Config) Complete() (Config, error) {
	if c.DataDir == "" {
		c.DataDir = DefaultDataDir
	}
	dir, err := realPath(c.DataDir)
	if err != nil {
		return c, fmt.Errorf("--data-dir %q: %w", c.DataDir, err)
	}
	c.DataDir = dir
	if c.KubeletRoot != "" {
		if c.KubeletRoot, err = realPath(c.KubeletRoot); err != nil {
			return c, fmt.Errorf("--kubelet-root-dir %q: %w", c.KubeletRoot, err)
		}
	}
	if c.CertificateLifetime != 0 && c.CertificateLifetime < minCertificateLifetime {
		return c, fmt.Errorf("--certificate-lifetime %v: want %v or more", c.CertificateLifetime, minCertificateLifetime)
	}
	if c.StartLock != "" {
		if c.StartLock, err = filepath.Abs(c.StartLock); err != nil {
			return c, fmt.Errorf("--start-lock %q: %w", c.StartLock, err)
		}
	}
	if c.StaticPods != "" {
		if c.StaticPods, err = filepath.Abs(c.StaticPods); err != nil {
			return c, fmt.Errorf("--pod-manifest-path %q: %w", c.StaticPods, err)
		}
	}
	if c.ResolvConf != "" {
		if c.ResolvConf, err = filepath.Abs(c.ResolvConf); err != nil {
			return c, fmt.Errorf("--resolv-conf %q: %w", c.ResolvConf, err)
		}
	}
	if c.RegistryConfig != "" {
		if c.RegistryConfig, err = filepath.Abs(c.RegistryConfig); err != nil {
			return c, fmt.Errorf("--registry-config %q: %w", c.RegistryConfig, err)
		}
	}
	if c.KubeletConfig != "" {
		if c.KubeletConfig, err = filepath.Abs(c.KubeletConfig); err != nil {
			return c, fmt.Errorf("--kubelet-config %q: %w", c.KubeletConfig, err)
		}
	}
	if c.BinDir == "" {
		if c.BinDir, err = programs.Dir(); err != nil {
			return c, err
		}
	}
	if c.NodeName == "" {
		name, err := os.Hostname()
		if err != nil {
			return c, fmt.Errorf("find the host name (or give --node-name): %w", err)
		}
		c.NodeName = strings.ToLower(name)
	}
	if c.PodCIDR == "" {
		c.PodCIDR = DefaultPodCIDR
	}
	if c.ServiceCIDR == "" {
		c.ServiceCIDR = DefaultServiceCIDR
	}
	if c.APIPort == 0 {
		c.APIPort = DefaultAPIPort
	}
	return c, errors.Join(c.Resources.complete(), c.validate())
}

// realPath returns the absolute path without symbolic links. Elements that do not exist yet stay unchanged, also as
// targets of links. Without permission to resolve the path it returns the absolute path.
func realPath(path string) (string, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	resolved, err := securejoin.SecureJoin("/", absolute)
	if errors.Is(err, fs.ErrPermission) {
		return absolute, nil
	}
	return resolved, err
}

func (c Config) validate() error {
	errs := []error{c.validatePaths()}
	if problems := validation.IsDNS1123Subdomain(c.NodeName); len(problems) > 0 {
		errs = append(errs, fmt.Errorf("--node-name %q: %s", c.NodeName, strings.Join(problems, "; ")))
	}
	pods, services, err := c.networks()
	errs = append(errs, err)
	if c.APIPort < 1 || c.APIPort > 65535 {
		errs = append(errs, fmt.Errorf("--api-port %d: not between 1 and 65535", c.APIPort))
	}
	if c.Runtime != "" && !slices.Contains(containerd.Runtimes(), c.Runtime) {
		errs = append(errs, fmt.Errorf("--runtime %q: want one of %s", c.Runtime, strings.Join(containerd.Runtimes(), ", ")))
	}
	for name, value := range c.FeatureGates {
		if _, err := strconv.ParseBool(value); err != nil {
			errs = append(errs, fmt.Errorf("--feature-gates %s=%s: want true or false", name, value))
		}
	}
	errs = append(errs, c.validateAPIAddress(pods, services))
	return errors.Join(append(errs, c.validateLoadBalancers(pods.v4, services.v4)...)...)
}

// validateLoadBalancers checks the range of the addresses of Services of type LoadBalancer.
func (c Config) validateLoadBalancers(pods, services netip.Prefix) (errs []error) {
	if c.LoadBalancerCIDR == "" {
		return errs
	}
	balancers, err := ParseCIDR("--load-balancer-cidr", c.LoadBalancerCIDR, 32)
	if err != nil {
		return append(errs, err)
	}
	for _, other := range []struct {
		flag   string
		prefix netip.Prefix
	}{{"--pod-cidr", pods}, {"--service-cidr", services}} {
		if other.prefix.IsValid() && other.prefix.Overlaps(balancers) {
			errs = append(errs, fmt.Errorf("--load-balancer-cidr %s and %s %s overlap: choose ranges apart", balancers, other.flag, other.prefix))
		}
	}
	return errs
}

// validatePaths checks that the paths have the right types. The data directory need not exist yet.
func (c Config) validatePaths() error {
	var errs []error
	if info, err := os.Stat(c.DataDir); err == nil && !info.IsDir() || errors.Is(err, unix.ENOTDIR) {
		errs = append(errs, fmt.Errorf("--data-dir %s: it is a file, or below a file: name a directory", c.DataDir))
	}
	if c.KubeletRoot != "" {
		if info, err := os.Stat(c.KubeletRoot); err == nil && !info.IsDir() || errors.Is(err, unix.ENOTDIR) {
			errs = append(errs, fmt.Errorf("--kubelet-root-dir %s: it is a file, or below a file: name a directory", c.KubeletRoot))
		}
		if within(c.DataDir, c.KubeletRoot) || within(c.KubeletRoot, c.DataDir) {
			errs = append(errs, fmt.Errorf("--kubelet-root-dir %s and --data-dir %s: one is in the other: choose directories apart", c.KubeletRoot, c.DataDir))
		}
	}
	if c.ResolvConf != "" {
		if _, err := os.Stat(c.ResolvConf); err != nil {
			errs = append(errs, fmt.Errorf("--resolv-conf: create the file first, or correct the path: %w", err))
		}
	}
	if c.RegistryConfig != "" {
		if info, err := os.Stat(c.RegistryConfig); err != nil {
			errs = append(errs, fmt.Errorf("--registry-config: create the directory first, or correct the path: %w", err))
		} else if !info.IsDir() {
			errs = append(errs, fmt.Errorf("--registry-config %s: it is a file: name the directory that has one for each registry", c.RegistryConfig))
		}
	}
	if c.KubeletConfig != "" {
		if _, err := kubeletfile.Read(c.KubeletConfig); err != nil {
			errs = append(errs, fmt.Errorf("--kubelet-config: %w", err))
		}
	}
	if c.StaticPods != "" {
		if _, err := os.Stat(c.StaticPods); err != nil {
			errs = append(errs, fmt.Errorf("--pod-manifest-path: create the file or the directory first, or correct the path: %w", err))
		}
	}
	return errors.Join(errs...)
}

// FreePort returns a free loopback port outside of the range of ephemeral ports: no outgoing connection can occupy it
// while the cluster, which keeps its port, is stopped.
func FreePort() (int, error) { return freeport.Loopback() }

// Layout has the paths, names and addresses of one cluster. They follow from the Config. It has many methods because each path
// is one.
type Layout struct {
	Config
	// ID identifies the cluster on its machine: 8 hex digits of the data directory's hash.
	ID string
	// RunDir is short, because the path of a unix socket has at most 107 bytes.
	RunDir string
	// Gateway is the pod bridge's address, and the Node's without an APIAddress.
	Gateway netip.Addr
	// Pods is this node's part of PodCIDR: the control plane assigns each node a /24 of a wide range, and the first node the
	// first /24.
	Pods netip.Prefix
	// Gateway6 and Pods6 are the same of IPv6; they are invalid in a cluster without IPv6.
	Gateway6 netip.Addr
	Pods6    netip.Prefix
}

// nodeBits and nodeBits6 are the prefix lengths of a node's part of a wide pod range.
const (
	nodeBits  = 24
	nodeBits6 = 64
)

// nodeRange6 are the lengths that a node's part of an IPv6 network may have: it has the bridge and Pods.
var nodeRange6 = [2]int{1, 124}

// clusterID returns the ID of the cluster in a data directory.
func clusterID(dataDir string) string {
	sum := sha256.Sum256([]byte(dataDir))
	return hex.EncodeToString(sum[:4])
}

// runDir returns the directory of a cluster's sockets and of its runtime's state.
func runDir(id string) string { return filepath.Join("/run/berth", id) }

// NewLayout derives the layout of a completed Config.
func NewLayout(c Config) (Layout, error) {
	pods, err := parsePodNetworks(c.PodCIDR)
	if err != nil {
		return Layout{}, err
	}
	own := networks{v4: netip.PrefixFrom(pods.v4.Addr(), max(pods.v4.Bits(), nodeBits))}
	if pods.v6.IsValid() {
		own.v6 = netip.PrefixFrom(pods.v6.Addr(), max(pods.v6.Bits(), nodeBits6))
	}
	if c.NodePodCIDR != "" {
		if own, err = parseNetworks("podCIDRs of the node", c.NodePodCIDR, 29, nodeRange6); err != nil {
			return Layout{}, err
		}
	}
	id := clusterID(c.DataDir)
	layout := Layout{
		Config: c, ID: id, RunDir: runDir(id), Gateway: own.v4.Addr().Next(), Pods: own.v4,
	}
	if own.v6.IsValid() {
		layout.Gateway6, layout.Pods6 = own.v6.Addr().Next(), own.v6
	}
	return layout, nil
}

// clusterCIDR is the range of the Pods of all nodes; invalid if there can be no other nodes.
func (l Layout) clusterCIDR() netip.Prefix {
	whole, err := parsePodNetworks(l.PodCIDR)
	if err != nil || whole.v4 == l.Pods {
		return netip.Prefix{}
	}
	return whole.v4
}

// Bridge is the name of the cluster's pod bridge; a network interface's name has at most 15 bytes.
func (l Layout) Bridge() string { return "berth" + l.ID }

// CgroupRoot is the parent cgroup of all of the cluster's Pods.
func (l Layout) CgroupRoot() string { return "/berth-" + l.ID }

// AdminKubeconfig is the kubeconfig for people: all that it needs is in it, so that they can copy it.
func (l Layout) AdminKubeconfig() string { return filepath.Join(l.DataDir, "admin.kubeconfig") }

// ownerKubeconfig has the identity of AdminKubeconfig for the components: their clients follow the renewals of its certificate, which
// is a file of its own.
func (l Layout) ownerKubeconfig() string { return l.Kubeconfig("controlplane") }

// MemberDir has the identities of a machine that joined a cluster.
func (l Layout) MemberDir() string { return MemberDir(l.DataDir) }

// MemberDir is Layout.MemberDir of a data directory.
func MemberDir(dataDir string) string { return filepath.Join(dataDir, memberDirName) }

// memberDirName is the directory that exists before a machine that joins has any other state.
const memberDirName = "node"

// Kubeconfig is the kubeconfig of one of Berth's components.
func (l Layout) Kubeconfig(part string) string {
	if l.Server != "" {
		return filepath.Join(l.MemberDir(), part+".kubeconfig")
	}
	return filepath.Join(l.DataDir, "kubeconfigs", part+".kubeconfig")
}

// PKI is a file of the cluster's PKI.
func (l Layout) PKI(name string) string { return filepath.Join(l.DataDir, "pki", name) }

// KubeletDir is the kubelet's root: Pods' directories and volumes.
func (l Layout) KubeletDir() string {
	if l.KubeletRoot != "" {
		return l.KubeletRoot
	}
	return filepath.Join(l.DataDir, "kubelet")
}

// PodLogsDir holds the containers' logs.
func (l Layout) PodLogsDir() string { return filepath.Join(l.DataDir, "log", "pods") }

// VolumesDir holds the volumes of class berth-local.
func (l Layout) VolumesDir() string { return filepath.Join(l.DataDir, "volumes") }

// Log is the log file of one process.
func (l Layout) Log(process string) string { return filepath.Join(l.DataDir, "log", process+".log") }

// ContainerdRoot is the runtime's persistent directory: images, snapshots, metadata.
func (l Layout) ContainerdRoot() string { return filepath.Join(l.DataDir, "containerd") }

// ContainerdSocket is the container runtime's socket.
func (l Layout) ContainerdSocket() string { return filepath.Join(l.RunDir, "containerd.sock") }

// registryConfig is the directory with what is configured of registries; it need not exist.
func (l Layout) registryConfig() string {
	if l.RegistryConfig != "" {
		return l.RegistryConfig
	}
	own := filepath.Join(l.ContainerdRoot(), "certs.d")
	if !isDir(own) && isDir(DefaultRegistryConfig) {
		return DefaultRegistryConfig
	}
	return own // containerd reads it at each pull, so it may come later
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// Socket is the socket on which the running cluster serves its timeline.
func (l Layout) Socket() string { return filepath.Join(l.RunDir, "berth.sock") }

// Program is the path of a program that belongs to Berth.
func (l Layout) Program(name string) string { return filepath.Join(l.BinDir, name) }
