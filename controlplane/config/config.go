// Package config holds the command line of berth-controlplane, validates it, and
// derives all paths and other values from it.
package config

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-dev/berth/controlplane/pki"
)

// maxUnixPath is how long a unix socket's path may be: sun_path has 108 bytes,
// the last of them zero.
const maxUnixPath = 107

// Config is the command line as given. The methods derive everything else from it. It has many fields because each flag has one.
type Config struct {
	// DataDir holds what must survive a reboot: pki, kubeconfigs, etcd.
	DataDir string
	// RunDir holds what need not survive: sockets and generated configuration. Its path
	// must be short, because unix socket paths end at 107 bytes.
	RunDir string
	// APIPort is the TCP port of the API server on every bind address.
	APIPort int
	// BindAddresses are the addresses the API server listens on and no others;
	// kubeconfigs point to the first.
	BindAddresses []string
	// ListenerFD is the descriptor of an inherited, listening TCP socket that the API server also serves on; 0 if there is none.
	ListenerFD int
	// AdvertiseAddress is the address of the endpoints of the Service
	// default/kubernetes. Empty: the first bind address that is not loopback. If
	// there is none either, the Service has no endpoints, because the API forbids
	// loopback there.
	AdvertiseAddress string
	// ServiceCIDR is the range of Service addresses, or one of each family.
	ServiceCIDR string
	// PodCIDR is the range that node.spec.podCIDRs are allocated from, or one of
	// each family.
	PodCIDR string
	// NodeName and NodeIP identify the node for whose kubelet certificates are
	// issued here. NodeIP may be empty.
	NodeName string
	NodeIP   string
	// RuntimeConfig turns versions and resources of the API on and off, and FeatureGates features of Kubernetes in all components,
	// both as kube-apiserver's flags of these names do. Empty leaves the defaults.
	RuntimeConfig, FeatureGates string
	// Hardened refuses what ordinary clusters allow: Pods that are not restricted, and Services with external addresses.
	Hardened bool
	// APIOnly runs the API server with two controllers alone, which collect garbage and let namespaces go away: objects stay as they
	// are written otherwise.
	APIOnly bool
	// StartLock is a file that other clusters have locked, shared, until their Nodes are ready: the controller manager and the scheduler wait
	// for them, shortly. Empty: they wait for none.
	StartLock string
	// CertificateLifetime is how long certificates are valid; they are renewed when a third of it is left.
	CertificateLifetime time.Duration
	// LogLevel is debug, info, warn or error.
	LogLevel string
	// UnsafeNoFsync lets etcd skip fsync: for tests only, a power cut then loses
	// the cluster.
	UnsafeNoFsync bool
	// DatabaseChecker is a program that says whether a database is whole, as
	// `containerd check-database FILE`. It is asked about etcd's after a crash,
	// and when etcd's log is damaged.
	DatabaseChecker string
}

// Validate returns the first error in c; it names the flag.
func (c *Config) Validate() error {
	checks := []func() error{
		c.validatePaths, c.validatePort, c.validateAddresses, c.validateCIDRs, c.validateNode, c.validateLifetime, c.validateLogLevel,
	}
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) validatePaths() error {
	for _, dir := range []struct{ flag, path string }{{"--data-dir", c.DataDir}, {"--run-dir", c.RunDir}} {
		if !filepath.IsAbs(dir.path) {
			return fmt.Errorf("%s %q: want an absolute path", dir.flag, dir.path)
		}
	}
	if socket := c.EtcdSocket(); len(socket) > maxUnixPath {
		return fmt.Errorf("--run-dir %q: the socket %q would have %d bytes, at most %d are possible: choose a shorter path",
			c.RunDir, socket, len(socket), maxUnixPath)
	}
	// The path becomes part of a URL and of an etcd endpoint list.
	if strings.ContainsAny(c.RunDir, ",?#%") {
		return fmt.Errorf("--run-dir %q: must not contain any of , ? # %%", c.RunDir)
	}
	return nil
}

func (c *Config) validatePort() error {
	if c.APIPort < 1 || c.APIPort > 65535 {
		return fmt.Errorf("--api-port %d: want 1 to 65535", c.APIPort)
	}
	if c.ListenerFD != 0 && c.ListenerFD < 3 {
		return fmt.Errorf("--listener-fd %d: want a descriptor above 2, or 0 for none", c.ListenerFD)
	}
	return nil
}

func (c *Config) validateAddresses() error {
	if len(c.BindAddresses) == 0 {
		return fmt.Errorf("--bind-address: want at least one address")
	}
	seen := make(map[netip.Addr]bool, len(c.BindAddresses))
	for _, text := range c.BindAddresses {
		addr, err := parseAddr("--bind-address", text)
		if err != nil {
			return err
		}
		if addr.IsUnspecified() {
			return fmt.Errorf("--bind-address %q: name each address; listening on all of them is not supported", text)
		}
		if seen[addr] {
			return fmt.Errorf("--bind-address %q: given twice", text)
		}
		seen[addr] = true
	}
	if c.AdvertiseAddress != "" {
		addr, err := parseAddr("--advertise-address", c.AdvertiseAddress)
		if err != nil {
			return err
		}
		if addr.IsUnspecified() {
			return fmt.Errorf("--advertise-address %q: want one address that pods can reach", c.AdvertiseAddress)
		}
	}
	return nil
}

func (c *Config) validateCIDRs() error {
	services, err := parseCIDRs("--service-cidr", c.ServiceCIDR)
	if err != nil {
		return err
	}
	pods, err := parseCIDRs("--pod-cidr", c.PodCIDR)
	if err != nil {
		return err
	}
	if len(services) != len(pods) || services[0].Addr().Is4() != pods[0].Addr().Is4() {
		return fmt.Errorf("--service-cidr %q and --pod-cidr %q: want the same families in the same order", c.ServiceCIDR, c.PodCIDR)
	}
	for i, service := range services {
		pod := pods[i]
		if hostBits := service.Addr().BitLen() - service.Bits(); hostBits < 3 || hostBits > 20 {
			return fmt.Errorf("--service-cidr %q: want between 8 and 2^20 addresses", service)
		}
		if hostBits := pod.Addr().BitLen() - pod.Bits(); hostBits < 2 {
			return fmt.Errorf("--pod-cidr %q: want at least 4 addresses", pod)
		}
		if nodeMaskSize(pod)-pod.Bits() > 16 {
			return fmt.Errorf("--pod-cidr %q: too wide; a range of 2^16 nodes is the most", pod)
		}
		if service.Overlaps(pod) {
			return fmt.Errorf("--service-cidr %q overlaps --pod-cidr %q: choose ranges apart", service, pod)
		}
	}
	return nil
}

func (c *Config) validateNode() error {
	if problems := validation.IsDNS1123Subdomain(c.NodeName); len(problems) > 0 {
		return fmt.Errorf("--node-name %q: %s", c.NodeName, strings.Join(problems, "; "))
	}
	if c.NodeIP == "" {
		return nil
	}
	_, err := parseAddr("--node-ip", c.NodeIP)
	return err
}

// minLifetime leaves a renewal some seconds.
const minLifetime = 20 * time.Second

func (c *Config) validateLifetime() error {
	if c.CertificateLifetime < minLifetime || c.CertificateLifetime > pki.MaxLife {
		return fmt.Errorf("--certificate-lifetime %v: want %v to %v", c.CertificateLifetime, minLifetime, pki.MaxLife)
	}
	return nil
}

// CertificateReload is how often a client that runs checks whether its certificate was renewed. Client-go's own period is long enough
// for the usual lifetime.
func (c *Config) CertificateReload() time.Duration {
	const usual, perLife = 5 * time.Minute, 12
	return min(usual, c.CertificateLifetime/perLife)
}

func (c *Config) validateLogLevel() error {
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.LogLevel) {
		return fmt.Errorf("--log-level %q: want debug, info, warn or error", c.LogLevel)
	}
	return nil
}

// HealthSocket is the unix socket on which this process shows that it does not hang.
func (c *Config) HealthSocket() string { return filepath.Join(c.RunDir, "controlplane-health.sock") }

// EtcdSocket is the unix socket on which etcd serves the API server.
func (c *Config) EtcdSocket() string { return filepath.Join(c.EtcdRunDir(), "etcd.sock") }

// EtcdRunDir is the directory of the socket: mode 0700, because whoever can open
// the socket owns the cluster.
func (c *Config) EtcdRunDir() string { return filepath.Join(c.RunDir, "etcd") }

// EtcdDataDir is where etcd keeps the cluster.
func (c *Config) EtcdDataDir() string { return filepath.Join(c.DataDir, "etcd") }

// PKIDir is where certificates and keys lie.
func (c *Config) PKIDir() string { return filepath.Join(c.DataDir, "pki") }

// AuthenticationConfigFile is the API server's authentication configuration,
// written at each start.
func (c *Config) AuthenticationConfigFile() string {
	return filepath.Join(c.RunDir, "authentication.yaml")
}

// AdmissionConfigFile is the configuration of admission plugins, written at each start.
func (c *Config) AdmissionConfigFile() string { return filepath.Join(c.RunDir, "admission.yaml") }

// AuditPolicyFile says which requests are recorded, written at each start.
func (c *Config) AuditPolicyFile() string { return filepath.Join(c.RunDir, "audit-policy.yaml") }

// AuditLogFile is the log of requests.
func (c *Config) AuditLogFile() string { return filepath.Join(c.DataDir, "log", "audit.log") }

// EncryptionConfigFile has the key of Secrets for the API server, written at each start.
func (c *Config) EncryptionConfigFile() string { return filepath.Join(c.PKIDir(), "encryption.yaml") }

// SecretsKeyFiles are the two copies of the key that encrypts Secrets.
func (c *Config) SecretsKeyFiles() []string {
	return []string{filepath.Join(c.PKIDir(), "secrets.key"), filepath.Join(c.PKIDir(), "secrets-copy.key")}
}

// PlainSecretsFile exists as long as the store may have Secrets that are not encrypted.
func (c *Config) PlainSecretsFile() string { return filepath.Join(c.PKIDir(), "secrets-in-plain") }

// SchedulerConfigFile is the scheduler's configuration, written at each start.
func (c *Config) SchedulerConfigFile() string { return filepath.Join(c.RunDir, "scheduler.json") }

// AdminKubeconfig is the kubeconfig of the cluster's owner.
func (c *Config) AdminKubeconfig() string { return filepath.Join(c.DataDir, "admin.kubeconfig") }

// Kubeconfig is the kubeconfig of one component of the cluster.
func (c *Config) Kubeconfig(part string) string {
	return filepath.Join(c.KubeconfigDir(), part+".kubeconfig")
}

// KubeconfigDir is the directory of the kubeconfigs of the components.
func (c *Config) KubeconfigDir() string { return filepath.Join(c.DataDir, "kubeconfigs") }

// ServerURL is the address of the API server in every kubeconfig.
func (c *Config) ServerURL() string {
	return "https://" + net.JoinHostPort(c.BindAddresses[0], strconv.Itoa(c.APIPort))
}

// Advertise is the address of the endpoints of default/kubernetes, or "" if
// there is none that the API would accept. c must be valid.
func (c *Config) Advertise() string {
	candidates := c.BindAddresses
	if c.AdvertiseAddress != "" {
		candidates = []string{c.AdvertiseAddress}
	}
	for _, text := range candidates {
		if addr, err := netip.ParseAddr(text); err == nil && !addr.IsLoopback() {
			return text
		}
	}
	return ""
}

// ServiceIP is the address of the Service default/kubernetes: the first usable
// one of the service range. c must be valid.
func (c *Config) ServiceIP() netip.Addr {
	prefixes, err := parseCIDRs("--service-cidr", c.ServiceCIDR)
	if err != nil {
		return netip.Addr{}
	}
	return prefixes[0].Masked().Addr().Next()
}

// NodeMaskArgs are the arguments of the controller manager that say how long
// the prefixes of a node's pod ranges are. A pod range of 256 addresses or
// fewer goes to the first node whole; a wider one is cut into ranges of 256
// (IPv6: /64), so that more nodes may join. c must be valid.
func (c *Config) NodeMaskArgs() []string {
	prefixes, err := parseCIDRs("--pod-cidr", c.PodCIDR)
	if err != nil {
		return nil
	}
	if len(prefixes) == 1 {
		return []string{fmt.Sprintf("--node-cidr-mask-size=%d", nodeMaskSize(prefixes[0]))}
	}
	var args []string
	for _, prefix := range prefixes {
		family := "ipv6"
		if prefix.Addr().Is4() {
			family = "ipv4"
		}
		args = append(args, fmt.Sprintf("--node-cidr-mask-size-%s=%d", family, nodeMaskSize(prefix)))
	}
	return args
}

func nodeMaskSize(pods netip.Prefix) int {
	if pods.Addr().Is4() {
		return max(pods.Bits(), 24)
	}
	return max(pods.Bits(), 64)
}

func parseAddr(flag, text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" || addr.Is4In6() {
		return netip.Addr{}, fmt.Errorf("%s %q: want an IP address", flag, text)
	}
	return addr, nil
}

// parseCIDRs parses a range, or one of each family.
func parseCIDRs(flag, text string) ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	for _, part := range strings.Split(text, ",") {
		prefix, err := parseCIDR(flag, part)
		if err != nil {
			return nil, err
		}
		prefixes = append(prefixes, prefix)
	}
	if len(prefixes) > 2 || len(prefixes) == 2 && prefixes[0].Addr().Is4() == prefixes[1].Addr().Is4() {
		return nil, fmt.Errorf("%s %q: want one range, or one of IPv4 and one of IPv6", flag, text)
	}
	return prefixes, nil
}

func parseCIDR(flag, text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%s %q: want a range such as 10.0.0.0/16", flag, text)
	}
	if prefix.Masked() != prefix {
		return netip.Prefix{}, fmt.Errorf("%s %q: has host bits set; did you mean %s?", flag, text, prefix.Masked())
	}
	return prefix, nil
}
