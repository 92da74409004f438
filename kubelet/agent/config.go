package agent

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/eviction"
	"github.com/berth-dev/berth/kubelet/metrics"
	"github.com/berth-dev/berth/kubelet/network"
	"github.com/berth-dev/berth/kubelet/nodeshutdown"
	"github.com/berth-dev/berth/kubelet/qos"
	"github.com/berth-dev/berth/kubelet/resources"
	"github.com/berth-dev/berth/kubelet/server"
)

const (
	defaultClusterDomain       = "cluster.local"
	defaultHostsFile           = "/etc/hosts"
	defaultResolvConf          = "/etc/resolv.conf"
	defaultShutdownGracePeriod = 10 * time.Second
	defaultMaxPods             = 110
	minLogMonitorPeriod        = time.Second
)

// Bounds of CgroupConfig.CPUQuotaPeriod, which are the kernel's.
const (
	MinCPUQuotaPeriod = time.Millisecond
	MaxCPUQuotaPeriod = time.Second
)

// DefaultOOMScoreAdj is the oom_score_adj of a process that runs an agent: the kernel kills nearly all others first.
const DefaultOOMScoreAdj = qos.KubeletOOMScoreAdj

// ContainerLogsDir is where log collectors look for the links of LogsConfig.ContainersDir.
const ContainerLogsDir = "/var/log/containers"

// Config holds the values of an Agent. All paths are absolute. It has many fields because a kubelet has many parts, of which each
// has a field.
type Config struct {
	Node NodeConfig
	// RootDir holds pods/UID/… and all other state.
	RootDir string
	Logs    LogsConfig
	Lock    LockConfig
	Runtime RuntimeConfig
	Cgroups CgroupConfig
	// DNS configures the Pods' resolvers; the zero value has the domain cluster.local, no servers, and /etc/resolv.conf as the
	// node's file. That file is the default of any other value, too. With NoNodeResolver Pods inherit nothing from the node.
	DNS            network.DNS
	NoNodeResolver bool
	Network        NetworkConfig
	// HostsFile is the node's own; /etc/hosts if empty.
	HostsFile string
	Pods      PodConfig
	Images    ImageConfig
	// Eviction says when the node is short of memory, disk or process IDs, and evicts Pods.
	Eviction eviction.Config
	// Managers say which containers get CPUs, memory and devices of their own. The agent sets Dir and what is reserved.
	Managers resources.Config
	// Server says where the HTTPS server listens; without addresses there is none.
	Server ServerConfig
	// Static names the sources of static Pods.
	Static StaticConfig
	Events EventConfig
	// Shutdown says how long Pods have to end when the machine shuts down.
	Shutdown ShutdownConfig
	// OOMScoreAdj is the oom_score_adj of this process; nil leaves it.
	OOMScoreAdj *int
	// Tracing says where spans are sent over OTLP/gRPC, and how many; nil sends them to Deps.TracerProvider, if
	// that is set.
	Tracing *tracingapi.TracingConfiguration
	// MaxOpenFiles is how many files this process may have open; zero leaves the limit.
	MaxOpenFiles uint64
	// KernelDefaults says what becomes of the kernel's sysctls; by default they are left as they are.
	KernelDefaults KernelDefaults
	// Source, if set, is the configuration that these values come from; /configz shows its fields beside those of Config.
	Source *kubeletconfig.KubeletConfiguration
	// Features are the feature gates of Kubernetes with their states, for the metric of them. They change nothing here.
	Features []metrics.Feature
}

// KernelDefaults says what becomes of sysctls that differ from what a kubelet wants of its machine.
type KernelDefaults string

const (
	// SetKernelDefaults sets them.
	SetKernelDefaults KernelDefaults = "set"
	// RequireKernelDefaults ends the start with an error.
	RequireKernelDefaults KernelDefaults = "require"
)

// ShutdownConfig says how long Pods have to end when the machine shuts down.
type ShutdownConfig struct {
	// Periods are the times by the Pods' priority. Without any the machine's shutdown does not wait for Pods.
	Periods []nodeshutdown.Period
}

// EventConfig limits the writing of events.
type EventConfig struct {
	// QPS is how many events are written per second in the long run, and Burst how many at once; no limit if QPS is zero.
	QPS   float32
	Burst int
}

// NodeConfig describes the Node object. It has many fields because the Node has.
type NodeConfig struct {
	// Name is the name of the Node object, IPs its internal addresses, the primary one first.
	Name string
	IPs  []net.IP
	// Hostname is the Node's hostname label and address; Name if empty.
	Hostname string
	// Labels and Taints are set when the Node is registered.
	Labels map[string]string
	Taints []corev1.Taint
	// Version is reported as the node's kubeletVersion.
	Version string
	// ProviderID is the machine's ID at its cloud, set in a Node that has none.
	ProviderID string
	// NoRegister leaves the creation of the Node to others: the agent waits until it exists.
	NoRegister bool
	// Cloud leaves the Node's addresses, labels and taints of its cloud to the cloud's controller manager.
	Cloud CloudConfig
	// LeaseDuration is the duration of the node's Lease, 40 s if zero. UpdateInterval is how often the size of its disk is
	// measured, 10 s if zero, and ReportInterval how often the status is written although nothing has changed,
	// 5 min if zero.
	LeaseDuration, UpdateInterval, ReportInterval time.Duration
	// MaxImages is how many images the status lists, the largest first; 50 if nil, all if negative.
	MaxImages *int
}

// CloudConfig describes a Node whose cloud has a controller manager.
type CloudConfig struct {
	// External says that it has one. The Node is registered with the taint node.cloudprovider.kubernetes.io/uninitialized, which the
	// controller manager removes, and addresses of the Node that exist are kept.
	External bool
	// NodeIPs are the addresses that the user has chosen, which the Node's annotation alpha.kubernetes.io/provided-node-ip names.
	NodeIPs []net.IP
	// ChosenIPs says that the user has chosen the Node's IPs, by NodeIPs or by their family alone: the Node has them until the controller
	// manager sets its addresses. Otherwise it has none until then.
	ChosenIPs bool
}

// LogsConfig says where container logs lie.
type LogsConfig struct {
	// PodsDir holds a directory of log files for each Pod.
	PodsDir string
	// ContainersDir holds a link to the log of each container, under the name that log collectors look for. Empty makes
	// none.
	ContainersDir string
	// MaxSize is how large a container's log file may grow, in bytes, before it is rotated; 10 MiB if zero, never if
	// negative. MaxFiles is how many files each container has at most; 5 if zero.
	MaxSize  int64
	MaxFiles int
	// MaxWorkers is how many logs are rotated at once; 1 if zero. MonitorPeriod is the longest time between two checks of a
	// log that is written to; 10 s if zero, at least 1 s.
	MaxWorkers    int
	MonitorPeriod time.Duration
}

// NetworkConfig says what the agent does in the node's network.
type NetworkConfig struct {
	// MakeIPTablesUtilChains makes the kubelet's chains in the node's packet filter (see package packetfilter).
	MakeIPTablesUtilChains bool
}

// LockConfig names the lock file.
type LockConfig struct {
	// File, if set, is locked while the agent runs: a second one waits for the first. With ExitOnContention the first ends
	// when a second one comes.
	File             string
	ExitOnContention bool
}

// RuntimeConfig says how the container runtime is reached.
type RuntimeConfig struct {
	// Endpoint is the socket of the container runtime.
	Endpoint string
	// ImageEndpoint is the socket of the image service; Endpoint if empty.
	ImageEndpoint string
	// Timeout bounds a request that has no bound of its own; 2 min if zero.
	Timeout time.Duration
	// PodCIDR is the range of Pods' addresses that an agent without an API server gives to the runtime; none if empty.
	PodCIDR string
	// RelistPeriod is how often all Pods of the runtime are listed, as a safety net for missed events; 2 min if zero.
	RelistPeriod time.Duration
}

// CgroupConfig describes the cgroups and the limits that they enforce. It has many fields because each is a choice of its own.
type CgroupConfig struct {
	// Root is the cgroup that holds kubepods, "/" if empty.
	Root string
	// Driver is used where the runtime does not report its own; cgroupfs if empty.
	Driver cm.Driver
	// FailV1 and FailSwapOn reject a machine that has only cgroup v1, or swap.
	FailV1, FailSwapOn bool
	// SwapBehavior says which Pods may use swap: none unless it is cm.LimitedSwap.
	SwapBehavior cm.SwapBehavior
	// SingleProcessOOMKill lets the kernel kill one process of a container that is out of memory, instead of all. Nil means
	// false where the kernel can do either, which is with cgroup v2.
	SingleProcessOOMKill *bool
	// PodPidsLimit is the most processes of one Pod; no limit if not positive.
	PodPidsLimit int64
	// NoCPUQuota leaves the CPU limits of Pods and containers to their shares: the kernel does not enforce them.
	NoCPUQuota bool
	// ExclusiveCPUQuota enforces CPU limits on CPUs that a container has for itself, too.
	ExclusiveCPUQuota bool
	// CPUQuotaPeriod is the period in which the kernel enforces CPU limits, 1 ms to 1 s; 100 ms if zero.
	CPUQuotaPeriod time.Duration
	// Enforcement says what is reserved for the node's own daemons, and what cgroups enforce.
	Enforcement cm.Enforcement
	// MemoryQoS reserves and throttles the memory of Pods with cgroup v2, as the feature gate MemoryQoS of Kubernetes does,
	// which is off by default; nil does neither.
	MemoryQoS *cm.MemoryQoSConfig
	// KubeletCgroups, if set, is the cgroup that this process is moved to, and SystemCgroups the one that the other processes of
	// the topmost cgroup are moved to; both are created. RuntimeCgroups is that of the container runtime. They name the cgroups
	// for statistics, too; empty ones are found out.
	KubeletCgroups, SystemCgroups, RuntimeCgroups string
	// ReservedCPUs is the list of CPUs whose number Enforcement reserves. The machine must have them.
	ReservedCPUs string
}

// PodConfig limits the Pods of the node.
type PodConfig struct {
	// Max is how many Pods the node takes, 110 if nil.
	Max *int64
	// MaxPerCore is how many it takes for each CPU; no such limit if zero.
	MaxPerCore int64
	// SyncPeriod is the longest time between two syncs of a Pod; 5 min if zero.
	SyncPeriod time.Duration
	// IDsPerPod is how many user IDs a Pod with a user namespace has, a multiple of 65536; 65536 if zero.
	IDsPerPod int64
	// MaxBackoff is the longest wait of a crash loop; 300 s if zero.
	MaxBackoff time.Duration
	// ShutdownGracePeriod bounds the grace period that StopPods gives each Pod; 10 s if zero.
	ShutdownGracePeriod time.Duration
	// AllowedUnsafeSysctls are the sysctls that Pods may set beside the safe ones; a name that ends in "*" allows all names
	// with that prefix.
	AllowedUnsafeSysctls []string
	// SELinuxMount mounts volumes of all access modes with the Pod's SELinux label, where their CSI driver supports it, and not
	// only ReadWriteOncePod ones. It is the feature gate SELinuxMount of Kubernetes.
	SELinuxMount bool
	// UsageMaxAge is that of volumemanager.Config.
	UsageMaxAge time.Duration
	// NoProjectQuotas measures the files of each emptyDir, also where the kernel counts them.
	NoProjectQuotas bool
	// NoPodResources ignores the resources of Pods as a whole: only those of their containers count.
	NoPodResources bool
	// ListEnded has the podresources API list Pods that have ended, too, while they are on the node.
	ListEnded bool
	// SeccompDefault gives containers that name no seccomp profile the runtime's default one; else they run without any.
	SeccompDefault bool
}

// ImageConfig says how images are pulled and removed.
type ImageConfig struct {
	// MaxParallelPulls is how many images are pulled at once; 4 if zero.
	MaxParallelPulls int
	// PullQPS is how many pulls may start in a second, in the long run, and PullBurst how many at once; no limits if zero.
	// A pull beyond that fails with ErrImagePull and is retried after its backoff.
	PullQPS   float32
	PullBurst int
	// GCHigh is how full the images' disk may become, in percent, before unused images are removed, and GCLow how full it
	// may be afterwards. A High of zero removes none: an image that was imported by hand may not be available again. A node
	// whose images all come from registries should use 85 and 80, the defaults of Kubernetes.
	GCHigh, GCLow int
	// MinAge is how long an image is kept at least, 2 min if zero, not at all if negative. MaxAge is how long it may be unused before it is removed; for
	// ever if zero.
	MinAge, MaxAge time.Duration
	// Verification says which present images a Pod may use without credentials that have pulled them;
	// NeverVerifyPreloadedImages if empty. NotVerified is the list of NeverVerifyAllowlistedImages.
	Verification kubeletconfig.ImagePullCredentialsVerificationPolicy
	NotVerified  []string
	// CredentialProviders is the configuration of the credential provider plugins, a file or a directory, and
	// CredentialProvidersDir the directory of the plugins. Empty means none.
	CredentialProviders, CredentialProvidersDir string
}

// StaticConfig names the sources of static Pods. Both may be empty.
type StaticConfig struct {
	// Path is a manifest file or a directory of such, read when it changes and every FilePeriod (20 s if zero).
	Path       string
	FilePeriod time.Duration
	// URL is requested every HTTPPeriod (20 s if zero), with Header.
	URL        string
	Header     http.Header
	HTTPPeriod time.Duration
	// HandlePodOnly means that Pods come through Agent.HandlePod alone: neither the API server nor Path and URL are read.
	HandlePodOnly bool
}

// ServerConfig holds the values of the node's servers. It has many fields because each part of the API can be turned off.
type ServerConfig struct {
	// Addresses are host:port; Port is the one the Node object names.
	Addresses []string
	Port      int32
	// CertFile and KeyFile are the serving certificate; ClientCAFile holds the CAs of its clients. All are reloaded when
	// they are replaced.
	CertFile, KeyFile, ClientCAFile string
	// CertLater lets the server start before the files of the certificate exist: it accepts connections once they do.
	CertLater bool
	// TLS, if set, limits the versions, ciphers and key exchanges of connections.
	TLS *tls.Config
	// Auth says who may use the API; its ClientCAFile is that of ServerConfig.
	Auth server.AuthConfig
	// HealthzAddress is a host:port for /healthz alone, and ReadOnlyAddress one for health, metrics, statistics and the list of
	// Pods: without TLS, for anyone. Empty for none.
	HealthzAddress, ReadOnlyAddress string
	// StreamIdleTimeout closes a stream to a container that transfers nothing for that long; never if zero.
	StreamIdleTimeout time.Duration
	// LogDir is the directory whose files are served at /logs/; empty for none.
	LogDir string
	// LogQuery lets clients query /logs/ for the logs of the machine's services.
	LogQuery bool
	// Profiling serves Go's profiler at /debug/pprof/; Contention adds profiles of blocking and mutexes.
	Profiling, Contention bool
	// DebugFlags lets clients change the log level at /debug/flags/v.
	DebugFlags bool
	// RuntimeMetrics serves the container runtime's metrics at /metrics/cadvisor, in place of those of the kernel.
	RuntimeMetrics bool
	// NoDebugging turns off what runs or reads something in containers: exec, attach, port-forward, run, logs.
	NoDebugging bool
}

// complete checks the values and sets defaults.
func (c *Config) complete() error {
	for name, path := range map[string]string{"RootDir": c.RootDir, "Logs.PodsDir": c.Logs.PodsDir} {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path {
			return fmt.Errorf("agent: Config.%s %q: want a clean absolute path", name, path)
		}
	}
	switch {
	case c.Node.Name == "":
		return errors.New("agent: Config.Node.Name is required")
	case len(c.Node.IPs) == 0:
		return errors.New("agent: Config.Node.IPs is required: the node needs an address")
	case len(c.Server.Addresses) > 0 && (c.Server.CertFile == "" || c.Server.KeyFile == ""):
		return errors.New("agent: Config.Server.CertFile and KeyFile are required to listen")
	case len(c.Server.Addresses) > 0 && c.Server.Port <= 0:
		return errors.New("agent: Config.Server.Port is required for the Node object when the server listens")
	case c.Lock.File == "" && c.Lock.ExitOnContention:
		return errors.New("agent: Config.Lock.ExitOnContention needs a File")
	case (c.Images.CredentialProviders == "") != (c.Images.CredentialProvidersDir == ""):
		return errors.New("agent: Config.Images.CredentialProviders and CredentialProvidersDir must be set together")
	case c.Pods.Max != nil && *c.Pods.Max < 0:
		return fmt.Errorf("agent: Config.Pods.Max %d is negative", *c.Pods.Max)
	case c.Logs.MonitorPeriod != 0 && c.Logs.MonitorPeriod < minLogMonitorPeriod:
		return fmt.Errorf("agent: Config.Logs.MonitorPeriod %s: want at least %s", c.Logs.MonitorPeriod, minLogMonitorPeriod)
	}
	if period := c.Cgroups.CPUQuotaPeriod; period != 0 && (period < MinCPUQuotaPeriod || period > MaxCPUQuotaPeriod) {
		return fmt.Errorf("agent: Config.Cgroups.CPUQuotaPeriod %s: want %s to %s", period, MinCPUQuotaPeriod, MaxCPUQuotaPeriod)
	}
	if err := errors.Join(c.Cgroups.Enforcement.Validate(), c.Cgroups.SwapBehavior.Validate(), c.Cgroups.MemoryQoS.Validate(),
		validateTracing(c.Tracing)); err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	c.Eviction = c.Eviction.WithDefaults()
	if _, err := eviction.ParseThresholds(c.Eviction); err != nil {
		return fmt.Errorf("agent: Config.Eviction: %w", err)
	}
	if len(c.DNS.ClusterDNS) == 0 && c.DNS.ResolvConf == "" && !c.NoNodeResolver {
		setDefault(&c.DNS.ClusterDomain, defaultClusterDomain)
	}
	if !c.NoNodeResolver {
		setDefault(&c.DNS.ResolvConf, defaultResolvConf)
	}
	setDefault(&c.HostsFile, defaultHostsFile)
	if c.Pods.Max == nil {
		c.Pods.Max = ptr.To[int64](defaultMaxPods)
	}
	setDefault(&c.Pods.ShutdownGracePeriod, defaultShutdownGracePeriod)
	return nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
