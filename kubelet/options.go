package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/node"
	"github.com/berth-dev/berth/kubelet/pleg"
	"github.com/berth-dev/berth/kubelet/volumemanager"
	"github.com/berth-dev/berth/timeline"
)

const (
	defaultClusterDomain = "cluster.local"
	defaultHostsFile     = "/etc/hosts"
	defaultResolvConf    = "/etc/resolv.conf"
	defaultStopGrace     = 10 * time.Second
	defaultMaxPods       = 110
)

// Config are the values of a Kubelet. All paths are absolute.
type Config struct {
	// NodeName is the name of the Node object, NodeIPs its internal addresses, the primary one first.
	NodeName string
	NodeIPs  []net.IP
	// Hostname is the Node's hostname label and address; NodeName if empty.
	Hostname string
	// Labels and Taints are given to the Node when it is registered.
	Labels map[string]string
	Taints []corev1.Taint
	// Version is reported as the node's kubeletVersion.
	Version string

	// RootDir holds pods/UID/… and all other state, PodLogsDir a directory of log files for each Pod.
	RootDir, PodLogsDir string
	// LockFile, if set, is locked while the node agent runs: a second one waits for the first. With
	// ExitOnLockContention the first ends when a second comes, as an agent that brings up another does.
	LockFile             string
	ExitOnLockContention bool
	// ContainerLogsDir has a link to the log of each container, under the name that collectors of logs look for. Empty
	// makes none.
	ContainerLogsDir string
	// RuntimeEndpoint is the socket of the container runtime.
	RuntimeEndpoint string
	// RuntimeAudit is how often all that the runtime holds is listed, as a net below its events; 2 min if zero.
	RuntimeAudit time.Duration
	// RuntimeName is the scheme of container ids in statuses; "containerd" if empty.
	RuntimeName string

	// CgroupRoot is the control group that holds kubepods, "/" if empty. The runtime says who makes groups in it;
	// CgroupDriver does where the runtime cannot, cgroupfs if empty.
	CgroupRoot   string
	CgroupDriver cm.Driver
	// FailCgroupV1 and FailSwapOn refuse a machine that has old control groups only, or swap.
	FailCgroupV1, FailSwapOn bool
	// SwapBehavior says which Pods may use swap: none unless it is cm.LimitedSwap.
	SwapBehavior cm.SwapBehavior
	// SingleProcessOOMKill lets the kernel kill one process of a container that is out of memory, instead of all. Unset
	// means false where the kernel can do either, which is with control groups of version 2.
	SingleProcessOOMKill *bool
	// PodPidsLimit is the most processes of one Pod; no limit if not positive.
	PodPidsLimit int64
	// KubeReserved and SystemReserved are taken off what Pods may ask for.
	KubeReserved, SystemReserved corev1.ResourceList
	// EnforceNodeAllocatable says who is held to that by control groups: EnforcePods if nil. The groups of the node's own
	// programs are KubeReservedCgroup and SystemReservedCgroup, which have to be there.
	EnforceNodeAllocatable                   []string
	KubeReservedCgroup, SystemReservedCgroup string

	// ClusterDNS are the name servers of Pods, ClusterDomain the domain of services ("cluster.local" if empty).
	ClusterDNS    []string
	ClusterDomain string
	// ResolvConf and HostsFile are the node's own; those in /etc if empty.
	ResolvConf, HostsFile string

	// AllowedUnsafeSysctls are kernel parameters that Pods may set beside upstream's safe ones; a name that ends in "*"
	// allows all that begin so.
	AllowedUnsafeSysctls []string
	// Thresholds say when the Node is short of something and takes no new Pods; upstream's if nil.
	Thresholds *node.Thresholds
	// MaxPods is how many Pods the node takes; 110 if zero.
	MaxPods int64
	// MaxParallelPulls is how many images are pulled at once; 4 if zero.
	MaxParallelPulls int
	// MaxBackoff is the longest wait of a crash loop; 300 s if zero.
	MaxBackoff time.Duration
	// ContainerLogMaxSize is how large a container's log file may grow, in bytes, before it is put aside; 10 MiB if
	// zero. ContainerLogMaxFiles is how many such files each container has at most; 5 if zero.
	ContainerLogMaxSize  int64
	ContainerLogMaxFiles int
	// ImageGCHigh is how full the images' disk may become, in percent, before images that nobody uses are removed, and
	// ImageGCLow how full it may be afterwards. A High of zero removes none: what was imported by hand might not be
	// had again. A node whose images all come from registries should have upstream's 85 and 80.
	ImageGCHigh, ImageGCLow int
	// ImageMaxAge is how long nobody may have used an image before it is removed; for ever if zero.
	ImageMaxAge time.Duration
	// PullQPS is how many pulls of images may begin in a second, in the long run, and PullBurst how many at once; no
	// bounds if zero. A pull beyond that fails with ErrImagePull and is tried again after its backoff.
	PullQPS   float32
	PullBurst int
	// ImageVerification says which images that are present a Pod may use without credentials that have pulled them;
	// NeverVerifyPreloadedImages if empty. NotVerified is the list of NeverVerifyAllowlistedImages.
	ImageVerification kubeletconfig.ImagePullCredentialsVerificationPolicy
	NotVerified       []string
	// CredentialProviders is the configuration of programs that have logins for registries, a file or a directory, and
	// CredentialProvidersDir where the programs lie. Empty asks none.
	CredentialProviders, CredentialProvidersDir string
	// StopGrace bounds the grace that StopPods gives each Pod; 10 s if zero.
	StopGrace time.Duration

	// Server says where the HTTPS server listens; without addresses there is none.
	Server ServerConfig
	// Static says where Pods come from that no API server knows.
	Static StaticConfig
}

// StaticConfig names the sources of static Pods. Both may be empty.
type StaticConfig struct {
	// Path is a manifest's file or a directory of such, looked at when the kernel says that it has changed and every
	// FilePeriod (20 s if zero).
	Path       string
	FilePeriod time.Duration
	// URL is asked every HTTPPeriod (20 s if zero), with Header.
	URL        string
	Header     http.Header
	HTTPPeriod time.Duration
}

// ServerConfig are the values of the node's HTTPS server.
type ServerConfig struct {
	// Addresses are host:port; Port is the one the Node object names.
	Addresses []string
	Port      int32
	// CertFile and KeyFile are the serving certificate; ClientCAFile holds the CAs of its clients. All are read
	// again when they are replaced.
	CertFile, KeyFile, ClientCAFile string
	// CertLater lets the server begin before the certificate's files are there: it answers from when they are.
	CertLater bool
	// HealthzAddress is a loopback host:port for /healthz alone, without TLS; empty for none.
	HealthzAddress string
	// LogDir is the directory whose files are served at /logs/; empty for none.
	LogDir string
	// LogQuery lets /logs/ be asked for the logs of the machine's services.
	LogQuery bool
	// Profiling serves Go's profiler at /debug/pprof/; with Contention it tells as well where goroutines wait for each other.
	Profiling, Contention bool
	// DebugFlags lets the level of the log be changed at /debug/flags/v.
	DebugFlags bool
	// NoDebugging turns off what runs or reads something in containers: exec, attach, port-forward, run, logs.
	NoDebugging bool
}

// Deps are what a Kubelet needs from others. All may be nil.
type Deps struct {
	// Client speaks to the API server with the node's identity. LeaseClient should have a connection of its own;
	// it is Client if nil. Without a Client the node stands alone: there is no Node object, and only static Pods run.
	Client, LeaseClient kubernetes.Interface
	// Claims tells of changes of claims, where the controllers run in the same process: the node's identity may not watch
	// them. Without it what waits for a claim reads it each second, and growth is looked for each minute.
	Claims volumemanager.ClaimSource
	// Runtime stands in for the connection to Config.RuntimeEndpoint.
	Runtime  Runtime
	Timeline *timeline.Recorder
	Recorder record.EventRecorder
	Logger   *slog.Logger
	Clock    clock.WithTicker
	// Collectors are served at /metrics beside the node agent's own. Their names must not clash.
	Collectors []prometheus.Collector
	// Flags are the command line's flags by name, served at /flagz; nil serves none.
	Flags map[string]string
	// FindIPs, if set, says what the node's addresses are now, the primary one first. It is asked each time that an address
	// or a route of the machine has changed; until it says otherwise they are Config.NodeIPs, and an error leaves them as
	// they are. The server's addresses with the primary one move with it. Nil means that they were given for good.
	FindIPs func(ctx context.Context) ([]net.IP, error)
	// Readdressed, if set, is told of other addresses, before the Node is. It must return soon.
	Readdressed func(ips []net.IP)
	// AtRest, if set, is called each time that no Pod has changed for some seconds; footprint.Release is made for it.
	AtRest func() error
	// Exits, if set, tells how containers ended whose end the runtime has lost because it was itself ended then.
	Exits pleg.ExitRecorder
	// standalone says that Client is one that reaches nobody.
	standalone bool
}

func (c *Config) complete() error {
	for name, path := range map[string]string{"RootDir": c.RootDir, "PodLogsDir": c.PodLogsDir} {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path {
			return fmt.Errorf("kubelet: Config.%s %q: want a clean absolute path", name, path)
		}
	}
	switch {
	case c.NodeName == "":
		return errors.New("kubelet: Config.NodeName is empty")
	case len(c.NodeIPs) == 0:
		return errors.New("kubelet: Config.NodeIPs is empty: the node needs an address")
	case len(c.Server.Addresses) > 0 && (c.Server.CertFile == "" || c.Server.KeyFile == ""):
		return errors.New("kubelet: Config.Server.CertFile and KeyFile are needed to listen")
	case c.LockFile == "" && c.ExitOnLockContention:
		return errors.New("kubelet: Config.ExitOnLockContention needs a LockFile")
	case (c.CredentialProviders == "") != (c.CredentialProvidersDir == ""):
		return errors.New("kubelet: Config.CredentialProviders and CredentialProvidersDir go together")
	case c.MaxPods < 0:
		return fmt.Errorf("kubelet: Config.MaxPods %d is negative", c.MaxPods)
	}
	if err := errors.Join(c.CheckEnforcement(), c.SwapBehavior.Validate()); err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	if c.RuntimeName == "" {
		c.RuntimeName = "containerd"
	}
	if c.ClusterDomain == "" {
		c.ClusterDomain = defaultClusterDomain
	}
	if c.ResolvConf == "" {
		c.ResolvConf = defaultResolvConf
	}
	if c.HostsFile == "" {
		c.HostsFile = defaultHostsFile
	}
	if c.MaxPods == 0 {
		c.MaxPods = defaultMaxPods
	}
	if c.StopGrace == 0 {
		c.StopGrace = defaultStopGrace
	}
	return nil
}

func (d *Deps) complete() error {
	if d.Client == nil {
		client, err := newOfflineClient()
		if err != nil {
			return err
		}
		d.Client, d.LeaseClient, d.standalone = client, client, true
	}
	if d.LeaseClient == nil {
		d.LeaseClient = d.Client
	}
	if d.Recorder == nil {
		d.Recorder = &record.FakeRecorder{}
	}
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	if d.Clock == nil {
		d.Clock = clock.RealClock{}
	}
	return nil
}

func (c *Config) podDir(uid string) string { return filepath.Join(c.RootDir, "pods", uid) }
