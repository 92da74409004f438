package agent

import (
	"cmp"
	"net"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/images"
	"github.com/berth-dev/berth/kubelet/logs/rotate"
)

// configuration returns what is in force as a KubeletConfiguration: the fields of Config.Source, and over them what the agent works
// with.
func configuration(c *Config, driver cm.Driver) *configv1beta1.KubeletConfiguration {
	if c.Source == nil {
		return withoutSource(c, driver)
	}
	out := c.Source.DeepCopy()
	out.CgroupDriver = string(driver)
	out.PodLogsDir, out.ContainerRuntimeEndpoint = c.Logs.PodsDir, c.Runtime.Endpoint
	out.TLSCertFile, out.TLSPrivateKeyFile = c.Server.CertFile, c.Server.KeyFile
	out.StreamingConnectionIdleTimeout.Duration = c.Server.StreamIdleTimeout
	out.Authentication.X509.ClientCAFile = c.Server.ClientCAFile
	return out
}

// withoutSource returns the configuration of an agent whose values are not from a KubeletConfiguration, as far as that has the
// fields.
func withoutSource(c *Config, driver cm.Driver) *configv1beta1.KubeletConfiguration {
	list := func(resources corev1.ResourceList) map[string]string {
		out := map[string]string{}
		for name, quantity := range resources {
			out[string(name)] = quantity.String()
		}
		return out
	}
	out := &configv1beta1.KubeletConfiguration{
		TypeMeta:    metav1.TypeMeta{APIVersion: configv1beta1.SchemeGroupVersion.String(), Kind: "KubeletConfiguration"},
		PodLogsDir:  c.Logs.PodsDir,
		Port:        c.Server.Port,
		TLSCertFile: c.Server.CertFile, TLSPrivateKeyFile: c.Server.KeyFile,
		StreamingConnectionIdleTimeout: metav1.Duration{Duration: c.Server.StreamIdleTimeout},
		ClusterDNS:                     c.DNS.ClusterDNS, ClusterDomain: c.DNS.ClusterDomain, ResolverConfig: &c.DNS.ResolvConf,
		CgroupRoot: c.Cgroups.Root, CgroupDriver: string(driver), PodPidsLimit: &c.Cgroups.PodPidsLimit,
		MaxPods: int32(*c.Pods.Max), MaxParallelImagePulls: ptr.To(int32(cmp.Or(c.Images.MaxParallelPulls, images.DefaultParallel))),
		ContainerRuntimeEndpoint: c.Runtime.Endpoint, KubeReserved: list(c.Cgroups.Enforcement.KubeReserved),
		SystemReserved: list(c.Cgroups.Enforcement.SystemReserved), EnforceNodeAllocatable: c.Cgroups.Enforcement.Enforce,
		KubeReservedCgroup: c.Cgroups.Enforcement.KubeReservedCgroup, SystemReservedCgroup: c.Cgroups.Enforcement.SystemReservedCgroup,
		MemorySwap:  configv1beta1.MemorySwapConfiguration{SwapBehavior: string(c.Cgroups.SwapBehavior)},
		CPUCFSQuota: ptr.To(!c.Cgroups.NoCPUQuota), CPUCFSQuotaPeriod: &metav1.Duration{Duration: quotaPeriod(c)},
		SeccompDefault: &c.Pods.SeccompDefault, SingleProcessOOMKill: c.Cgroups.SingleProcessOOMKill, FailSwapOn: &c.Cgroups.FailSwapOn, FailCgroupV1: &c.Cgroups.FailV1,
		StaticPodPath: c.Static.Path, StaticPodURL: c.Static.URL, RegisterWithTaints: c.Node.Taints,
		AllowedUnsafeSysctls: c.Pods.AllowedUnsafeSysctls, Tracing: c.Tracing,
	}
	out.FeatureGates = gates(c)
	if memory := c.Cgroups.MemoryQoS; memory != nil {
		out.MemoryThrottlingFactor = ptr.To(cmp.Or(memory.ThrottlingFactor, cm.DefaultMemoryThrottlingFactor))
		out.MemoryReservationPolicy = cmp.Or(memory.ReservationPolicy, configv1beta1.NoneMemoryReservationPolicy)
	}
	e := c.Eviction
	out.EvictionHard, out.EvictionSoft, out.EvictionSoftGracePeriod = e.Hard, e.Soft, e.SoftGracePeriod
	out.EvictionMinimumReclaim, out.EvictionMaxPodGracePeriod = e.MinimumReclaim, int32(e.MaxPodGracePeriod)
	out.EvictionPressureTransitionPeriod.Duration = e.PressureTransitionPeriod
	setImageFields(out, c)
	setServerFields(out, &c.Server)
	return out
}

func quotaPeriod(c *Config) time.Duration {
	return cmp.Or(c.Cgroups.CPUQuotaPeriod, time.Duration(cm.DefaultQuotaPeriod)*time.Microsecond)
}

// setImageFields sets the fields of images and logs.
func setImageFields(out *configv1beta1.KubeletConfiguration, c *Config) {
	out.RegistryPullQPS, out.RegistryBurst = ptr.To(int32(c.Images.PullQPS)), int32(c.Images.PullBurst)
	out.SerializeImagePulls = ptr.To(*out.MaxParallelImagePulls == 1)
	out.ImagePullCredentialsVerificationPolicy = cmp.Or(c.Images.Verification, configv1beta1.NeverVerifyPreloadedImages)
	out.PreloadedImagesVerificationAllowlist = c.Images.NotVerified
	high, low := c.Images.GCHigh, c.Images.GCLow
	if high == 0 {
		high, low = 100, 100 // which is how never is written
	}
	out.ImageGCHighThresholdPercent, out.ImageGCLowThresholdPercent = ptr.To(int32(high)), ptr.To(int32(low))
	out.ImageMaximumGCAge.Duration = c.Images.MaxAge
	size := cmp.Or(c.Logs.MaxSize, rotate.DefaultMaxSize)
	out.ContainerLogMaxSize = resource.NewQuantity(size, resource.BinarySI).String()
	out.ContainerLogMaxFiles = ptr.To(int32(cmp.Or(c.Logs.MaxFiles, rotate.DefaultMaxFiles)))
	out.ContainerLogMaxWorkers = ptr.To(int32(cmp.Or(c.Logs.MaxWorkers, rotate.DefaultWorkers)))
	out.ContainerLogMonitorInterval = &metav1.Duration{Duration: cmp.Or(c.Logs.MonitorPeriod, rotate.DefaultPeriod)}
	if c.Pods.MaxBackoff > 0 {
		out.CrashLoopBackOff.MaxContainerRestartPeriod = &metav1.Duration{Duration: c.Pods.MaxBackoff}
	}
}

// setServerFields sets the fields of the server.
func setServerFields(out *configv1beta1.KubeletConfiguration, c *ServerConfig) {
	if len(c.Addresses) > 0 {
		if host, _, err := net.SplitHostPort(c.Addresses[0]); err == nil {
			out.Address = host
		}
	}
	out.HealthzPort = ptr.To[int32](0)
	if host, port, err := net.SplitHostPort(c.HealthzAddress); err == nil {
		if n, err := strconv.ParseInt(port, 10, 32); err == nil {
			out.HealthzBindAddress, out.HealthzPort = host, ptr.To(int32(n))
		}
	}
	out.EnableServer = ptr.To(len(c.Addresses) > 0)
	out.EnableDebuggingHandlers, out.EnableProfilingHandler = ptr.To(!c.NoDebugging), &c.Profiling
	out.EnableDebugFlagsHandler, out.EnableContentionProfiling = &c.DebugFlags, c.Contention
	out.EnableSystemLogHandler, out.EnableSystemLogQuery = ptr.To(c.LogDir != ""), &c.LogQuery
	out.Authentication.X509.ClientCAFile = c.ClientCAFile
	out.Authentication.Webhook.Enabled, out.Authentication.Anonymous.Enabled = ptr.To(true), ptr.To(false)
	out.Authorization.Mode = configv1beta1.KubeletAuthorizationModeWebhook
}

// gates returns the feature gates of Kubernetes that are in another state than by default.
func gates(c *Config) map[string]bool {
	out := map[string]bool{}
	if c.Cgroups.MemoryQoS != nil {
		out["MemoryQoS"] = true
	}
	if c.Cgroups.ExclusiveCPUQuota {
		out["DisableCPUQuotaWithExclusiveCPUs"] = false
	}
	if c.Pods.NoPodResources {
		out["PodLevelResources"] = false
	}
	if c.Pods.ListEnded {
		out["KubeletPodResourcesListUseActivePods"] = false
	}
	return out
}
