package kubelet

import (
	"cmp"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/images"
	"github.com/berth-dev/berth/kubelet/logs/rotate"
)

// configz is the configuration in force, in upstream's words as far as they fit.
func (k *Kubelet) configz() map[string]any {
	c := &k.cfg
	list := func(resources corev1.ResourceList) map[string]string {
		out := map[string]string{}
		for name, quantity := range resources {
			out[string(name)] = quantity.String()
		}
		return out
	}
	out := &configv1beta1.KubeletConfiguration{
		TypeMeta:    metav1.TypeMeta{APIVersion: configv1beta1.SchemeGroupVersion.String(), Kind: "KubeletConfiguration"},
		PodLogsDir:  c.PodLogsDir,
		Port:        c.Server.Port,
		TLSCertFile: c.Server.CertFile, TLSPrivateKeyFile: c.Server.KeyFile,
		ClusterDNS: c.ClusterDNS, ClusterDomain: c.ClusterDomain, ResolverConfig: &c.ResolvConf,
		CgroupRoot: c.CgroupRoot, CgroupDriver: string(k.cgroups.Driver()), PodPidsLimit: &c.PodPidsLimit,
		MaxPods: int32(c.MaxPods), MaxParallelImagePulls: ptr.To(int32(cmp.Or(c.MaxParallelPulls, images.DefaultParallel))),
		ContainerRuntimeEndpoint: c.RuntimeEndpoint, KubeReserved: list(c.KubeReserved),
		SystemReserved: list(c.SystemReserved), EnforceNodeAllocatable: c.EnforceNodeAllocatable,
		KubeReservedCgroup: c.KubeReservedCgroup, SystemReservedCgroup: c.SystemReservedCgroup,
		MemorySwap:           configv1beta1.MemorySwapConfiguration{SwapBehavior: string(c.SwapBehavior)},
		SingleProcessOOMKill: c.SingleProcessOOMKill, FailSwapOn: &c.FailSwapOn, FailCgroupV1: &c.FailCgroupV1,
		StaticPodPath: c.Static.Path, StaticPodURL: c.Static.URL, RegisterWithTaints: c.Taints,
		AllowedUnsafeSysctls: c.AllowedUnsafeSysctls,
	}
	k.imagesTo(out)
	k.serverTo(out)
	return map[string]any{"kubeletconfig": out}
}

// imagesTo tells of images and logs.
func (k *Kubelet) imagesTo(out *configv1beta1.KubeletConfiguration) {
	c := &k.cfg
	out.RegistryPullQPS, out.RegistryBurst = ptr.To(int32(c.PullQPS)), int32(c.PullBurst)
	out.SerializeImagePulls = ptr.To(*out.MaxParallelImagePulls == 1)
	out.ImagePullCredentialsVerificationPolicy = cmp.Or(c.ImageVerification, configv1beta1.NeverVerifyPreloadedImages)
	out.PreloadedImagesVerificationAllowlist = c.NotVerified
	high, low := c.ImageGCHigh, c.ImageGCLow
	if high == 0 {
		high, low = 100, 100 // upstream's words for never
	}
	out.ImageGCHighThresholdPercent, out.ImageGCLowThresholdPercent = ptr.To(int32(high)), ptr.To(int32(low))
	out.ImageMaximumGCAge.Duration = c.ImageMaxAge
	size := cmp.Or(c.ContainerLogMaxSize, rotate.DefaultMaxSize)
	out.ContainerLogMaxSize = resource.NewQuantity(size, resource.BinarySI).String()
	out.ContainerLogMaxFiles = ptr.To(int32(cmp.Or(c.ContainerLogMaxFiles, rotate.DefaultMaxFiles)))
	if c.MaxBackoff > 0 {
		out.CrashLoopBackOff.MaxContainerRestartPeriod = &metav1.Duration{Duration: c.MaxBackoff}
	}
}

// serverTo tells of what is served, and to whom.
func (k *Kubelet) serverTo(out *configv1beta1.KubeletConfiguration) {
	c := &k.cfg.Server
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
