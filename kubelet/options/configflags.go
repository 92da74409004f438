package options

import (
	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/settings"
)

// headerFlag is the flag whose value may be a secret.
const headerFlag = "manifest-url-header"

// notDeprecated are the flags of the configuration's fields that Kubernetes keeps beside the file.
func notDeprecated() map[string]bool {
	return map[string]bool{"v": true, "vmodule": true, "log-flush-frequency": true, "provider-id": true, "fail-cgroupv1": true}
}

// addConfigurationFlags adds the flags that are fields of the configuration, which has defaults. Their help is that of the table
// of fields.
func addConfigurationFlags(main *pflag.FlagSet, c *settings.Configuration) {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	addServerFlags(set, c)
	addAccessFlags(set, c)
	addNodeFlags(set, c)
	addPodFlags(set, c)
	addImageFlags(set, c)
	addResourceFlags(set, c)
	addEvictionFlags(set, c)
	addMachineFlags(set, c)
	addLoggingFlags(set, &c.Logging)
	for _, field := range settings.Fields() {
		if f := set.Lookup(field.Flag); field.Flag != "" && f != nil {
			f.Usage = field.Does
			if !notDeprecated()[field.Flag] {
				f.Deprecated = deprecated(field.Path)
			}
		}
	}
	main.AddFlagSet(set)
}

func addServerFlags(set *pflag.FlagSet, c *settings.Configuration) {
	boolVar(set, "enable-server", &c.EnableServer)
	set.Var(ipValue{&c.Address}, "address", "")
	set.Int32Var(&c.Port, "port", c.Port, "")
	set.Int32Var(&c.ReadOnlyPort, "read-only-port", c.ReadOnlyPort, "")
	int32Var(set, "healthz-port", &c.HealthzPort)
	set.Var(ipValue{&c.HealthzBindAddress}, "healthz-bind-address", "")
	set.StringVar(&c.TLSCertFile, "tls-cert-file", c.TLSCertFile, "")
	set.StringVar(&c.TLSPrivateKeyFile, "tls-private-key-file", c.TLSPrivateKeyFile, "")
	set.StringSliceVar(&c.TLSCipherSuites, "tls-cipher-suites", c.TLSCipherSuites, "")
	set.StringVar(&c.TLSMinVersion, "tls-min-version", c.TLSMinVersion, "")
	set.BoolVar(&c.RotateCertificates, "rotate-certificates", c.RotateCertificates, "")
	set.BoolVar(&c.ServerTLSBootstrap, "rotate-server-certificates", c.ServerTLSBootstrap, "")
	boolVar(set, "enable-debugging-handlers", &c.EnableDebuggingHandlers)
	set.BoolVar(&c.EnableContentionProfiling, "contention-profiling", c.EnableContentionProfiling, "")
	set.DurationVar(&c.StreamingConnectionIdleTimeout.Duration, "streaming-connection-idle-timeout", c.StreamingConnectionIdleTimeout.Duration, "")
}

func addAccessFlags(set *pflag.FlagSet, c *settings.Configuration) {
	authn, authz := &c.Authentication, &c.Authorization
	set.StringVar(&authn.X509.ClientCAFile, "client-ca-file", authn.X509.ClientCAFile, "")
	boolVar(set, "anonymous-auth", &authn.Anonymous.Enabled)
	boolVar(set, "authentication-token-webhook", &authn.Webhook.Enabled)
	set.DurationVar(&authn.Webhook.CacheTTL.Duration, "authentication-token-webhook-cache-ttl", authn.Webhook.CacheTTL.Duration, "")
	set.StringVar((*string)(&authz.Mode), "authorization-mode", string(authz.Mode), "")
	set.DurationVar(&authz.Webhook.CacheAuthorizedTTL.Duration, "authorization-webhook-cache-authorized-ttl", authz.Webhook.CacheAuthorizedTTL.Duration, "")
	set.DurationVar(&authz.Webhook.CacheUnauthorizedTTL.Duration, "authorization-webhook-cache-unauthorized-ttl",
		authz.Webhook.CacheUnauthorizedTTL.Duration, "")
}

func addNodeFlags(set *pflag.FlagSet, c *settings.Configuration) {
	boolVar(set, "register-node", &c.RegisterNode)
	set.Var(&taintsValue{&c.RegisterWithTaints}, "register-with-taints", "")
	set.StringVar(&c.ProviderID, "provider-id", c.ProviderID, "")
	set.DurationVar(&c.NodeStatusUpdateFrequency.Duration, "node-status-update-frequency", c.NodeStatusUpdateFrequency.Duration, "")
	int32Var(set, "node-status-max-images", &c.NodeStatusMaxImages)
	boolVar(set, "enable-controller-attach-detach", &c.EnableControllerAttachDetach)
	int32Var(set, "event-qps", &c.EventRecordQPS)
	set.Int32Var(&c.EventBurst, "event-burst", c.EventBurst, "")
	int32Var(set, "kube-api-qps", &c.KubeAPIQPS)
	set.Int32Var(&c.KubeAPIBurst, "kube-api-burst", c.KubeAPIBurst, "")
	set.StringVar(&c.ContentType, "kube-api-content-type", c.ContentType, "")
	set.StringSliceVar(&c.AllowedUnsafeSysctls, "allowed-unsafe-sysctls", c.AllowedUnsafeSysctls, "")
	set.StringVar(&c.PodCIDR, "pod-cidr", c.PodCIDR, "")
}

func addPodFlags(set *pflag.FlagSet, c *settings.Configuration) {
	set.StringVar(&c.StaticPodPath, "pod-manifest-path", c.StaticPodPath, "")
	set.StringVar(&c.StaticPodURL, "manifest-url", c.StaticPodURL, "")
	set.Var(cliflag.NewColonSeparatedMultimapStringString(&c.StaticPodURLHeader), headerFlag, "")
	set.DurationVar(&c.SyncFrequency.Duration, "sync-frequency", c.SyncFrequency.Duration, "")
	set.DurationVar(&c.FileCheckFrequency.Duration, "file-check-frequency", c.FileCheckFrequency.Duration, "")
	set.DurationVar(&c.HTTPCheckFrequency.Duration, "http-check-frequency", c.HTTPCheckFrequency.Duration, "")
	set.DurationVar(&c.VolumeStatsAggPeriod.Duration, "volume-stats-agg-period", c.VolumeStatsAggPeriod.Duration, "")
	set.DurationVar(&c.RuntimeRequestTimeout.Duration, "runtime-request-timeout", c.RuntimeRequestTimeout.Duration, "")
	set.Int32Var(&c.MaxPods, "max-pods", c.MaxPods, "")
	set.Int32Var(&c.PodsPerCore, "pods-per-core", c.PodsPerCore, "")
	set.StringSliceVar(&c.ClusterDNS, "cluster-dns", c.ClusterDNS, "")
	set.StringVar(&c.ClusterDomain, "cluster-domain", c.ClusterDomain, "")
	set.StringVar(c.ResolverConfig, "resolv-conf", *c.ResolverConfig, "")
	set.StringVar(&c.VolumePluginDir, "volume-plugin-dir", c.VolumePluginDir, "")
	set.StringVar(&c.ContainerRuntimeEndpoint, "container-runtime-endpoint", c.ContainerRuntimeEndpoint, "")
	set.StringVar(&c.ImageServiceEndpoint, "image-service-endpoint", c.ImageServiceEndpoint, "")
	set.StringVar(&c.HairpinMode, "hairpin-mode", c.HairpinMode, "")
	set.BoolVar(&c.RunOnce, "runonce", c.RunOnce, "")
}

func addImageFlags(set *pflag.FlagSet, c *settings.Configuration) {
	int32Var(set, "registry-qps", &c.RegistryPullQPS)
	set.Int32Var(&c.RegistryBurst, "registry-burst", c.RegistryBurst, "")
	boolVar(set, "serialize-image-pulls", &c.SerializeImagePulls)
	set.DurationVar(&c.ImageMinimumGCAge.Duration, "minimum-image-ttl-duration", c.ImageMinimumGCAge.Duration, "")
	int32Var(set, "image-gc-high-threshold", &c.ImageGCHighThresholdPercent)
	int32Var(set, "image-gc-low-threshold", &c.ImageGCLowThresholdPercent)
	set.StringVar(&c.ContainerLogMaxSize, "container-log-max-size", c.ContainerLogMaxSize, "")
	int32Var(set, "container-log-max-files", &c.ContainerLogMaxFiles)
}

func addResourceFlags(set *pflag.FlagSet, c *settings.Configuration) {
	set.StringVar(&c.KubeletCgroups, "kubelet-cgroups", c.KubeletCgroups, "")
	set.StringVar(&c.SystemCgroups, "system-cgroups", c.SystemCgroups, "")
	set.StringVar(&c.CgroupRoot, "cgroup-root", c.CgroupRoot, "")
	set.StringVar(&c.CgroupDriver, "cgroup-driver", c.CgroupDriver, "")
	boolVar(set, "cgroups-per-qos", &c.CgroupsPerQOS)
	set.Int64Var(c.PodPidsLimit, "pod-max-pids", *c.PodPidsLimit, "")
	boolVar(set, "cpu-cfs-quota", &c.CPUCFSQuota)
	set.DurationVar(&c.CPUCFSQuotaPeriod.Duration, "cpu-cfs-quota-period", c.CPUCFSQuotaPeriod.Duration, "")
	boolVar(set, "fail-swap-on", &c.FailSwapOn)
	boolVar(set, "fail-cgroupv1", &c.FailCgroupV1)
	set.Var(cliflag.NewMapStringString(&c.SystemReserved), "system-reserved", "")
	set.Var(cliflag.NewMapStringString(&c.KubeReserved), "kube-reserved", "")
	set.StringVar(&c.ReservedSystemCPUs, "reserved-cpus", c.ReservedSystemCPUs, "")
	set.StringVar(&c.SystemReservedCgroup, "system-reserved-cgroup", c.SystemReservedCgroup, "")
	set.StringVar(&c.KubeReservedCgroup, "kube-reserved-cgroup", c.KubeReservedCgroup, "")
	set.StringSliceVar(&c.EnforceNodeAllocatable, "enforce-node-allocatable", c.EnforceNodeAllocatable, "")
	boolVar(set, "local-storage-capacity-isolation", &c.LocalStorageCapacityIsolation)
	set.Var(cliflag.NewMapStringString(&c.QOSReserved), "qos-reserved", "")
	set.StringVar(&c.CPUManagerPolicy, "cpu-manager-policy", c.CPUManagerPolicy, "")
	set.Var(cliflag.NewMapStringStringNoSplit(&c.CPUManagerPolicyOptions), "cpu-manager-policy-options", "")
	set.DurationVar(&c.CPUManagerReconcilePeriod.Duration, "cpu-manager-reconcile-period", c.CPUManagerReconcilePeriod.Duration, "")
	set.StringVar(&c.MemoryManagerPolicy, "memory-manager-policy", c.MemoryManagerPolicy, "")
	set.Var(&reservedMemoryValue{list: &c.ReservedMemory}, "reserved-memory", "")
	set.StringVar(&c.TopologyManagerPolicy, "topology-manager-policy", c.TopologyManagerPolicy, "")
	set.StringVar(&c.TopologyManagerScope, "topology-manager-scope", c.TopologyManagerScope, "")
	set.Var(cliflag.NewMapStringString(&c.TopologyManagerPolicyOptions), "topology-manager-policy-options", "")
}

func addEvictionFlags(set *pflag.FlagSet, c *settings.Configuration) {
	set.Var(cliflag.NewLangleSeparatedMapStringString(&c.EvictionHard), "eviction-hard", "")
	set.Var(cliflag.NewLangleSeparatedMapStringString(&c.EvictionSoft), "eviction-soft", "")
	set.Var(cliflag.NewMapStringString(&c.EvictionSoftGracePeriod), "eviction-soft-grace-period", "")
	set.DurationVar(&c.EvictionPressureTransitionPeriod.Duration, "eviction-pressure-transition-period", c.EvictionPressureTransitionPeriod.Duration, "")
	set.Int32Var(&c.EvictionMaxPodGracePeriod, "eviction-max-pod-grace-period", c.EvictionMaxPodGracePeriod, "")
	set.Var(cliflag.NewMapStringString(&c.EvictionMinimumReclaim), "eviction-minimum-reclaim", "")
	set.BoolVar(&c.KernelMemcgNotification, "kernel-memcg-notification", c.KernelMemcgNotification, "")
}

func addMachineFlags(set *pflag.FlagSet, c *settings.Configuration) {
	int32Var(set, "oom-score-adj", &c.OOMScoreAdj)
	set.Int64Var(&c.MaxOpenFiles, "max-open-files", c.MaxOpenFiles, "")
	set.BoolVar(&c.ProtectKernelDefaults, "protect-kernel-defaults", c.ProtectKernelDefaults, "")
	boolVar(set, "make-iptables-util-chains", &c.MakeIPTablesUtilChains)
	set.Var(cliflag.NewMapStringBool(&c.FeatureGates), "feature-gates", "")
}

func addLoggingFlags(set *pflag.FlagSet, l *logsapi.LoggingConfiguration) {
	set.StringVar(&l.Format, "logging-format", l.Format, "")
	set.DurationVar(&l.FlushFrequency.Duration.Duration, "log-flush-frequency", l.FlushFrequency.Duration.Duration, "")
	set.VarP(logsapi.VerbosityLevelPflag(&l.Verbosity), "v", "v", "")
	set.Var(logsapi.VModuleConfigurationPflag(&l.VModule), "vmodule", "")
	for format, routing := range map[string]*logsapi.OutputRoutingOptions{
		"text": &l.Options.Text.OutputRoutingOptions, "json": &l.Options.JSON.OutputRoutingOptions,
	} {
		set.BoolVar(&routing.SplitStream, "log-"+format+"-split-stream", routing.SplitStream, "")
		set.Var(&routing.InfoBufferSize, "log-"+format+"-info-buffer-size", "")
	}
}

// boolVar adds the flag of a field that has a default. The pointer is replaced, so that a configuration that shares it stays.
func boolVar(set *pflag.FlagSet, name string, field **bool) {
	*field = ptr.To(**field)
	set.BoolVar(*field, name, **field, "")
}

// int32Var is boolVar for a number.
func int32Var(set *pflag.FlagSet, name string, field **int32) {
	*field = ptr.To(**field)
	set.Int32Var(*field, name, **field, "")
}
