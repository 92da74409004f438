package settings

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/cpulist"
	"github.com/berth-dev/berth/internal/quantity"
	"github.com/berth-dev/berth/kubelet/agent"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/network"
	"github.com/berth-dev/berth/kubelet/nodeshutdown"
	"github.com/berth-dev/berth/kubelet/server"
)

// The formats of the log.
const (
	logText = "text"
	logJSON = "json"
)

// nodeLogDir is the directory that the kubelet's server serves at /logs/.
const nodeLogDir = "/var/log"

// Settings are what a Configuration says to the program that runs a kubelet.
type Settings struct {
	// Agent has the values of the agent. What only the machine or the command line knows is left empty: the Node's name,
	// addresses, labels and version, the root directory and the serving certificate.
	Agent agent.Config
	// API says how the clients of the API server work.
	API APISettings
	// Certificates says which certificates the cluster signs.
	Certificates CertificateSettings
	Logging      logsapi.LoggingConfiguration
	// Source is the Configuration with defaults, without the values that have no effect: it is what is in force.
	Source *Configuration
	// Warnings name the values that have no effect here.
	Warnings []string
}

// APISettings are those of the clients of the API server.
type APISettings struct {
	QPS, Burst  int
	ContentType string
}

// CertificateSettings are those of the certificates that the cluster signs.
type CertificateSettings struct {
	// RotateClient requests and renews the node's client certificate, Serving its serving certificate.
	RotateClient, Serving bool
}

// OpenAccess reports whether the kubelet's API is served to clients without credentials, who may use all of it.
func (s *Settings) OpenAccess() bool {
	return *s.Source.EnableServer && *s.Source.Authentication.Anonymous.Enabled && s.Agent.Server.Auth.AllowAll
}

// Convert returns what a Configuration says, with the defaults of Kubernetes for what it leaves open. The error names each value that
// breaks a rule of Kubernetes, or that this kubelet refuses.
func Convert(in *Configuration) (*Settings, error) {
	c := in.DeepCopy()
	SetDefaults(c)
	return ConvertComplete(c)
}

// ConvertComplete is Convert for a Configuration that has its defaults. A zero in it is what its user has chosen by a flag.
func ConvertComplete(in *Configuration) (*Settings, error) {
	c := in.DeepCopy()
	if err := Validate(c); err != nil {
		return nil, err
	}
	defaults := New()
	warnings, err := Check(c, defaults)
	if err != nil {
		return nil, err
	}
	out := &Settings{
		API:          APISettings{QPS: int(*c.KubeAPIQPS), Burst: int(c.KubeAPIBurst), ContentType: c.ContentType},
		Certificates: CertificateSettings{RotateClient: c.RotateCertificates, Serving: c.ServerTLSBootstrap},
		Logging:      c.Logging, Source: c, Warnings: warnings,
		Agent: agent.Config{
			Node: convertNode(c), Logs: convertLogs(c), Pods: convertPods(c), Images: convertImages(c),
			Runtime: agent.RuntimeConfig{
				Endpoint: c.ContainerRuntimeEndpoint, ImageEndpoint: c.ImageServiceEndpoint,
				Timeout: c.RuntimeRequestTimeout.Duration, PodCIDR: c.PodCIDR,
			},
			NoNodeResolver: *c.ResolverConfig == "",
			DNS:            network.DNS{ClusterDNS: c.ClusterDNS, ClusterDomain: c.ClusterDomain, ResolvConf: *c.ResolverConfig},
			Static: agent.StaticConfig{
				Path: c.StaticPodPath, FilePeriod: c.FileCheckFrequency.Duration,
				URL: c.StaticPodURL, Header: c.StaticPodURLHeader, HTTPPeriod: c.HTTPCheckFrequency.Duration,
			},
			Shutdown:    agent.ShutdownConfig{Periods: convertShutdown(c)},
			Network:     agent.NetworkConfig{MakeIPTablesUtilChains: *c.MakeIPTablesUtilChains},
			OOMScoreAdj: ptr.To(int(*c.OOMScoreAdj)), MaxOpenFiles: uint64(c.MaxOpenFiles),
			Events: agent.EventConfig{QPS: cmp.Or(float32(*c.EventRecordQPS), defaultEventQPS), Burst: cmp.Or(int(c.EventBurst), defaultEventBurst)},
		},
	}
	if out.Agent.Managers, err = convertManagers(c); err != nil {
		return nil, err
	}
	out.Agent.Source, out.Agent.Tracing, out.Agent.Features = out.Source, c.Tracing, Features(c.FeatureGates)
	out.Agent.KernelDefaults = agent.SetKernelDefaults
	if c.ProtectKernelDefaults {
		out.Agent.KernelDefaults = agent.RequireKernelDefaults
	}
	out.Agent.Eviction = convertEviction(c)
	out.Warnings = append(out.Warnings, out.Agent.Eviction.Warnings()...)
	var errs [2]error
	out.Agent.Server, errs[0] = convertServer(c)
	out.Agent.Cgroups, errs[1] = convertCgroups(c)
	return out, errors.Join(errs[:]...)
}

// chosen returns the time of a field. A zero is written as a negative time, because it means the default to an agent.Config.
func chosen(field metav1.Duration) time.Duration {
	if field.Duration == 0 {
		return -1
	}
	return field.Duration
}

// convertShutdown returns how long Pods have to end when the machine shuts down.
func convertShutdown(c *Configuration) []nodeshutdown.Period {
	if len(c.ShutdownGracePeriodByPodPriority) == 0 {
		return nodeshutdown.TwoPeriods(c.ShutdownGracePeriod.Duration, c.ShutdownGracePeriodCriticalPods.Duration)
	}
	periods := make([]nodeshutdown.Period, 0, len(c.ShutdownGracePeriodByPodPriority))
	for _, p := range c.ShutdownGracePeriodByPodPriority {
		periods = append(periods, nodeshutdown.Period{Priority: p.Priority, Grace: time.Duration(p.ShutdownGracePeriodSeconds) * time.Second})
	}
	return periods
}

func convertNode(c *Configuration) agent.NodeConfig {
	return agent.NodeConfig{
		ProviderID: c.ProviderID, Taints: c.RegisterWithTaints, NoRegister: !*c.RegisterNode,
		LeaseDuration:  time.Duration(c.NodeLeaseDurationSeconds) * time.Second,
		UpdateInterval: c.NodeStatusUpdateFrequency.Duration, ReportInterval: c.NodeStatusReportFrequency.Duration,
		MaxImages: ptr.To(int(*c.NodeStatusMaxImages)),
	}
}

func convertLogs(c *Configuration) agent.LogsConfig {
	size, _ := quantity.Parse(c.ContainerLogMaxSize) // Validate has parsed it
	return agent.LogsConfig{
		PodsDir: c.PodLogsDir, MaxSize: size.Value(), MaxFiles: int(*c.ContainerLogMaxFiles),
		MaxWorkers: int(*c.ContainerLogMaxWorkers), MonitorPeriod: c.ContainerLogMonitorInterval.Duration,
		ContainersDir: agent.ContainerLogsDir, // log collectors look there wherever the logs are
	}
}

func convertPods(c *Configuration) agent.PodConfig {
	out := agent.PodConfig{
		Max: ptr.To(int64(c.MaxPods)), MaxPerCore: int64(c.PodsPerCore), SyncPeriod: c.SyncFrequency.Duration,
		MaxBackoff:           c.CrashLoopBackOff.MaxContainerRestartPeriod.Duration,
		AllowedUnsafeSysctls: c.AllowedUnsafeSysctls, SeccompDefault: *c.SeccompDefault,
		UsageMaxAge: chosen(c.VolumeStatsAggPeriod),
	}
	if counted, set := c.FeatureGates[gateProjectQuotas]; set {
		out.NoProjectQuotas = !counted
	}
	out.NoPodResources = isOff(c, gatePodResources)
	out.ListEnded = isOff(c, gateListActive)
	if c.UserNamespaces != nil {
		out.IDsPerPod = ptr.Deref(c.UserNamespaces.IDsPerPod, 0)
	}
	return out
}

func convertImages(c *Configuration) agent.ImageConfig {
	out := agent.ImageConfig{
		PullQPS: float32(*c.RegistryPullQPS), PullBurst: int(c.RegistryBurst),
		GCHigh: int(*c.ImageGCHighThresholdPercent), GCLow: int(*c.ImageGCLowThresholdPercent),
		MinAge: chosen(c.ImageMinimumGCAge), MaxAge: c.ImageMaximumGCAge.Duration,
		Verification: c.ImagePullCredentialsVerificationPolicy, NotVerified: c.PreloadedImagesVerificationAllowlist,
	}
	switch {
	case *c.SerializeImagePulls:
		out.MaxParallelPulls = 1
	case c.MaxParallelImagePulls != nil:
		out.MaxParallelPulls = int(*c.MaxParallelImagePulls)
	default:
		out.MaxParallelPulls = math.MaxInt32 // no limit
	}
	return out
}

// convertServer returns the values of the kubelet's server. A serving certificate that is not configured is left empty.
func convertServer(c *Configuration) (agent.ServerConfig, error) {
	limits, err := tlsLimits(c)
	out := agent.ServerConfig{
		Port: c.Port, CertFile: c.TLSCertFile, KeyFile: c.TLSPrivateKeyFile, TLS: limits,
		ClientCAFile: c.Authentication.X509.ClientCAFile,
		Auth: server.AuthConfig{
			Anonymous: *c.Authentication.Anonymous.Enabled, NoTokens: !*c.Authentication.Webhook.Enabled,
			AllowAll:   c.Authorization.Mode == kubeletconfig.KubeletAuthorizationModeAlwaysAllow,
			TokenTTL:   chosen(c.Authentication.Webhook.CacheTTL),
			AllowedTTL: chosen(c.Authorization.Webhook.CacheAuthorizedTTL), DeniedTTL: chosen(c.Authorization.Webhook.CacheUnauthorizedTTL),
		},
		LogQuery: ptr.Deref(c.EnableSystemLogQuery, false), Profiling: *c.EnableProfilingHandler, Contention: c.EnableContentionProfiling,
		DebugFlags: *c.EnableDebugFlagsHandler, NoDebugging: !*c.EnableDebuggingHandlers,
		StreamIdleTimeout: c.StreamingConnectionIdleTimeout.Duration, RuntimeMetrics: c.FeatureGates[gateRuntimeMetrics],
	}
	if *c.EnableServer {
		out.Addresses = []string{hostPort(c.Address, c.Port)}
	}
	if c.ReadOnlyPort > 0 {
		out.ReadOnlyAddress = hostPort(c.Address, c.ReadOnlyPort)
	}
	if *c.HealthzPort > 0 {
		out.HealthzAddress = hostPort(c.HealthzBindAddress, *c.HealthzPort)
	}
	if *c.EnableSystemLogHandler {
		out.LogDir = nodeLogDir
	}
	return out, err
}

func hostPort(host string, port int32) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) }

// tlsLimits returns the limits of TLS connections.
func tlsLimits(c *Configuration) (*tls.Config, error) {
	version, err := flag.TLSVersion(c.TLSMinVersion)
	if err != nil {
		return nil, fmt.Errorf("tlsMinVersion (--tls-min-version) %q: want VersionTLS12 or VersionTLS13", c.TLSMinVersion)
	}
	suites, err := flag.TLSCipherSuites(c.TLSCipherSuites)
	if err != nil {
		return nil, fmt.Errorf("tlsCipherSuites (--tls-cipher-suites) %q: %w", c.TLSCipherSuites, err)
	}
	curves, err := flag.TLSCurvePreferences(c.TLSCurvePreferences)
	if err != nil {
		return nil, fmt.Errorf("tlsCurvePreferences %v: %w", c.TLSCurvePreferences, err)
	}
	return &tls.Config{MinVersion: version, CipherSuites: suites, CurvePreferences: curves}, nil
}

func convertCgroups(c *Configuration) (agent.CgroupConfig, error) {
	driver, err := cm.ParseDriver(c.CgroupDriver)
	if err != nil {
		return agent.CgroupConfig{}, err
	}
	kube, err := cm.ParseReserved("kubeReserved", c.KubeReserved)
	if err != nil {
		return agent.CgroupConfig{}, err
	}
	system, err := cm.ParseReserved("systemReserved", c.SystemReserved)
	if err != nil {
		return agent.CgroupConfig{}, err
	}
	if cpus, err := cpulist.Parse(c.ReservedSystemCPUs); err == nil && cpus.Size() > 0 {
		delete(kube, corev1.ResourceCPU)
		if system == nil {
			system = corev1.ResourceList{}
		}
		system[corev1.ResourceCPU] = *resource.NewQuantity(int64(cpus.Size()), resource.DecimalSI)
	}
	return agent.CgroupConfig{
		MemoryQoS: convertMemoryQoS(c), Root: c.CgroupRoot, Driver: driver, FailV1: *c.FailCgroupV1, FailSwapOn: *c.FailSwapOn,
		SwapBehavior: cm.SwapBehavior(c.MemorySwap.SwapBehavior), SingleProcessOOMKill: c.SingleProcessOOMKill,
		PodPidsLimit: *c.PodPidsLimit, NoCPUQuota: !*c.CPUCFSQuota, CPUQuotaPeriod: c.CPUCFSQuotaPeriod.Duration,
		ExclusiveCPUQuota: isOff(c, gateNoExclusiveQuota),
		KubeletCgroups:    c.KubeletCgroups, SystemCgroups: c.SystemCgroups, ReservedCPUs: c.ReservedSystemCPUs,
		Enforcement: cm.Enforcement{
			KubeReserved: kube, SystemReserved: system, Enforce: c.EnforceNodeAllocatable,
			KubeReservedCgroup: c.KubeReservedCgroup, SystemReservedCgroup: c.SystemReservedCgroup,
		},
	}, nil
}

// convertMemoryQoS returns how memory is reserved and throttled; nil without the feature.
func convertMemoryQoS(c *Configuration) *cm.MemoryQoSConfig {
	if !c.FeatureGates[gateMemoryQoS] {
		return nil
	}
	return &cm.MemoryQoSConfig{ThrottlingFactor: *c.MemoryThrottlingFactor, ReservationPolicy: c.MemoryReservationPolicy}
}
