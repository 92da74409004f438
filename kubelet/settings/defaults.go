package settings

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/agent"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/eviction"
)

// Configuration is the configuration of a kubelet, as its file has it.
type Configuration = kubeletconfig.KubeletConfiguration

// Defaults that more than this file needs.
const (
	DefaultPort         = 10250
	DefaultReadOnlyPort = 10255
	DefaultRootDir      = "/var/lib/kubelet"

	defaultHealthzPort      = 10248
	defaultVolumePluginDir  = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"
	defaultRuntimeEndpoint  = "unix:///run/containerd/containerd.sock"
	defaultPodLogsDir       = "/var/log/pods"
	defaultResolvConf       = "/etc/resolv.conf"
	defaultThrottlingFactor = 0.9
	defaultMasqueradeBit    = 14
	defaultDropBit          = 15
	maxContainerBackoff     = 300 * time.Second
	defaultQuotaPeriod      = 100 * time.Millisecond
	noPidsLimit             = -1
	// The limits of events that 0 means.
	defaultEventQPS, defaultEventBurst = 5, 10
)

// New returns a Configuration with the defaults of Kubernetes.
func New() *Configuration {
	c := &Configuration{}
	SetDefaults(c)
	return c
}

// DefaultEvictionHard returns the hard eviction thresholds of a configuration file that names none. A kubelet without a
// configuration file has none, as upstream's.
func DefaultEvictionHard() map[string]string { return eviction.DefaultHard() }

// SetDefaults sets the fields that have no value to the defaults of Kubernetes.
func SetDefaults(c *Configuration) {
	c.TypeMeta = metav1.TypeMeta{APIVersion: kubeletconfig.SchemeGroupVersion.String(), Kind: "KubeletConfiguration"}
	setServerDefaults(c)
	setNodeDefaults(c)
	setImageDefaults(c)
	setPodDefaults(c)
	setResourceDefaults(c)
	setMachineDefaults(c)
	logsapi.SetRecommendedLoggingConfiguration(&c.Logging)
}

// value sets a field that has no value.
func value[T comparable](field *T, to T) {
	var zero T
	if *field == zero {
		*field = to
	}
}

// pointer sets a field whose zero value is a choice, too.
func pointer[T any](field **T, to T) {
	if *field == nil {
		*field = &to
	}
}

func duration(field *metav1.Duration, to time.Duration) { value(&field.Duration, to) }

func setServerDefaults(c *Configuration) {
	pointer(&c.EnableServer, true)
	value(&c.Address, "0.0.0.0")
	value(&c.Port, DefaultPort)
	pointer(&c.Authentication.Anonymous.Enabled, false)
	pointer(&c.Authentication.Webhook.Enabled, true)
	duration(&c.Authentication.Webhook.CacheTTL, 2*time.Minute)
	value(&c.Authorization.Mode, kubeletconfig.KubeletAuthorizationModeWebhook)
	duration(&c.Authorization.Webhook.CacheAuthorizedTTL, 5*time.Minute)
	duration(&c.Authorization.Webhook.CacheUnauthorizedTTL, 30*time.Second)
	pointer(&c.EnableDebuggingHandlers, true)
	pointer(&c.HealthzPort, defaultHealthzPort)
	value(&c.HealthzBindAddress, "127.0.0.1")
	duration(&c.StreamingConnectionIdleTimeout, 4*time.Hour)
	pointer(&c.EnableSystemLogHandler, true)
	pointer(&c.EnableSystemLogQuery, false)
	pointer(&c.EnableProfilingHandler, true)
	pointer(&c.EnableDebugFlagsHandler, true)
}

func setNodeDefaults(c *Configuration) {
	// A configured update frequency is that of the reports, too.
	if c.NodeStatusReportFrequency.Duration == 0 && c.NodeStatusUpdateFrequency.Duration != 0 {
		c.NodeStatusReportFrequency = c.NodeStatusUpdateFrequency
	}
	duration(&c.NodeStatusReportFrequency, 5*time.Minute)
	duration(&c.NodeStatusUpdateFrequency, 10*time.Second)
	value(&c.NodeLeaseDurationSeconds, 40)
	pointer(&c.NodeStatusMaxImages, 50)
	pointer(&c.RegisterNode, true)
	pointer(&c.EnableControllerAttachDetach, true)
	pointer(&c.EventRecordQPS, 50)
	value(&c.EventBurst, 100)
	pointer(&c.KubeAPIQPS, 50)
	value(&c.KubeAPIBurst, 100)
	value(&c.ContentType, "application/vnd.kubernetes.protobuf")
}

func setImageDefaults(c *Configuration) {
	pointer(&c.RegistryPullQPS, 5)
	value(&c.RegistryBurst, 10)
	value(&c.ImagePullCredentialsVerificationPolicy, kubeletconfig.NeverVerifyPreloadedImages)
	duration(&c.ImageMinimumGCAge, 2*time.Minute)
	pointer(&c.ImageGCHighThresholdPercent, 85)
	pointer(&c.ImageGCLowThresholdPercent, 80)
	// Who sets a limit of several pulls wants them in parallel.
	pointer(&c.SerializeImagePulls, ptr.Deref(c.MaxParallelImagePulls, 0) < 2)
	value(&c.ContainerLogMaxSize, "10Mi")
	pointer(&c.ContainerLogMaxFiles, 5)
	pointer(&c.ContainerLogMaxWorkers, 1)
	pointer(&c.ContainerLogMonitorInterval, metav1.Duration{Duration: 10 * time.Second})
}

func setPodDefaults(c *Configuration) {
	value(&c.PodLogsDir, defaultPodLogsDir)
	duration(&c.SyncFrequency, time.Minute)
	duration(&c.FileCheckFrequency, 20*time.Second)
	duration(&c.HTTPCheckFrequency, 20*time.Second)
	duration(&c.VolumeStatsAggPeriod, time.Minute)
	value(&c.MaxPods, 110)
	pointer(&c.ResolverConfig, defaultResolvConf)
	value(&c.HairpinMode, kubeletconfig.PromiscuousBridge)
	value(&c.ConfigMapAndSecretChangeDetectionStrategy, kubeletconfig.WatchChangeDetectionStrategy)
	value(&c.VolumePluginDir, defaultVolumePluginDir)
	pointer(&c.SeccompDefault, false)
	pointer(&c.LocalStorageCapacityIsolation, true)
	pointer(&c.CrashLoopBackOff.MaxContainerRestartPeriod, metav1.Duration{Duration: maxContainerBackoff})
	value(&c.ContainerRuntimeEndpoint, defaultRuntimeEndpoint)
	duration(&c.RuntimeRequestTimeout, 2*time.Minute)
}

func setResourceDefaults(c *Configuration) {
	pointer(&c.CgroupsPerQOS, true)
	value(&c.CgroupDriver, string(cm.DriverCgroupfs))
	value(&c.CPUManagerPolicy, policyNone)
	duration(&c.CPUManagerReconcilePeriod, 10*time.Second)
	value(&c.MemoryManagerPolicy, kubeletconfig.NoneMemoryManagerPolicy)
	value(&c.TopologyManagerPolicy, kubeletconfig.NoneTopologyManagerPolicy)
	value(&c.TopologyManagerScope, kubeletconfig.ContainerTopologyManagerScope)
	if ptr.Deref(c.PodPidsLimit, noPidsLimit) < 0 {
		c.PodPidsLimit = ptr.To[int64](noPidsLimit)
	}
	pointer(&c.CPUCFSQuota, true)
	pointer(&c.CPUCFSQuotaPeriod, metav1.Duration{Duration: defaultQuotaPeriod})
	duration(&c.EvictionPressureTransitionPeriod, 5*time.Minute)
	pointer(&c.MergeDefaultEvictionSettings, false)
	if c.EnforceNodeAllocatable == nil {
		c.EnforceNodeAllocatable = []string{cm.EnforcePods}
	}
	pointer(&c.MemoryThrottlingFactor, defaultThrottlingFactor)
	value(&c.MemoryReservationPolicy, kubeletconfig.NoneMemoryReservationPolicy)
}

func setMachineDefaults(c *Configuration) {
	pointer(&c.OOMScoreAdj, agent.DefaultOOMScoreAdj)
	value(&c.MaxOpenFiles, 1_000_000)
	pointer(&c.MakeIPTablesUtilChains, true)
	pointer(&c.IPTablesMasqueradeBit, defaultMasqueradeBit)
	pointer(&c.IPTablesDropBit, defaultDropBit)
	pointer(&c.FailSwapOn, true)
	pointer(&c.FailCgroupV1, true)
}
