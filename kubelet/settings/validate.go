package settings

import (
	"errors"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	"k8s.io/component-helpers/node/util/sysctl"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/cpulist"
	"github.com/berth-dev/berth/internal/quantity"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/images/pullrecords"
)

// idBlock is the unit of the IDs of user namespaces.
const idBlock = 65536

// maxSysctl is the longest name of a sysctl.
const maxSysctl = 253

// sysctlPattern matches a sysctl, with dots or slashes between its parts, and the beginning of several before an asterisk.
var sysctlPattern = regexp.MustCompile(`^([a-z0-9]+([-_]+[a-z0-9]+)*[./])*([a-z0-9][-_a-z0-9]*)?[a-z0-9*]$`)

// problems collects what is wrong with a Configuration.
type problems struct {
	names map[string]string // of fields by path, as messages have them
	errs  []error
}

// want records a problem with a field unless ok.
func (p *problems) want(ok bool, path string, value any, want string) {
	if !ok {
		name, known := p.names[path]
		if !known {
			name = path
		}
		p.errs = append(p.errs, fmt.Errorf("%s %s: want %s", name, shown(value), want))
	}
}

func between[T int | int32 | int64 | float64 | time.Duration](value, low, high T) bool {
	return value >= low && value <= high
}

// Validate checks a Configuration with defaults against the rules of Kubernetes. The error names each field that breaks one.
func Validate(c *Configuration) error {
	p := &problems{names: map[string]string{}}
	for _, f := range Fields() {
		p.names[f.Path] = f.Name()
	}
	p.server(c)
	p.access(c)
	p.node(c)
	p.rates(c)
	p.images(c)
	p.logs(c)
	p.resources(c)
	p.reservations(c)
	p.managers(c)
	p.shutdown(c)
	p.machine(c)
	p.gates(c)
	if err := validateGates(c.FeatureGates); err != nil {
		p.errs = append(p.errs, err)
	}
	return errors.Join(p.errs...)
}

func (p *problems) server(c *Configuration) {
	const port = "a port, 1 to 65535"
	p.want(between(c.Port, 1, math.MaxUint16), "port", c.Port, port)
	p.want(between(c.ReadOnlyPort, 0, math.MaxUint16), "readOnlyPort", c.ReadOnlyPort, port+", or 0 for none")
	p.want(between(*c.HealthzPort, 0, math.MaxUint16), "healthzPort", *c.HealthzPort, port+", or 0 for none")
	for path, ip := range map[string]string{"address": c.Address, "healthzBindAddress": c.HealthzBindAddress} {
		p.want(net.ParseIP(ip) != nil, path, ip, "an IP address")
	}
	p.want((c.TLSCertFile == "") == (c.TLSPrivateKeyFile == ""), "tlsCertFile", c.TLSCertFile,
		"both tlsCertFile and tlsPrivateKeyFile, or none of them")
	p.want(!c.ServerTLSBootstrap || c.TLSCertFile == "", "serverTLSBootstrap", c.ServerTLSBootstrap,
		"either serverTLSBootstrap or tlsCertFile")
	p.want(c.StreamingConnectionIdleTimeout.Duration >= 0, "streamingConnectionIdleTimeout", c.StreamingConnectionIdleTimeout.Duration.String(), "no negative time")
	query, handler := ptr.Deref(c.EnableSystemLogQuery, false), *c.EnableSystemLogHandler
	p.want(!query || handler, "enableSystemLogQuery", query, "false, or enableSystemLogHandler true")
	p.want(c.ShowHiddenMetricsForVersion == "" || c.ShowHiddenMetricsForVersion == previousMinor, "showHiddenMetricsForVersion",
		c.ShowHiddenMetricsForVersion, "the previous minor version, "+previousMinor)
	if _, err := tlsLimits(c); err != nil {
		p.errs = append(p.errs, err)
	}
}

func (p *problems) access(c *Configuration) {
	mode := c.Authorization.Mode
	p.want(mode == kubeletconfig.KubeletAuthorizationModeWebhook || mode == kubeletconfig.KubeletAuthorizationModeAlwaysAllow,
		"authorization.mode", string(mode), "Webhook or AlwaysAllow")
	for path, ttl := range map[string]time.Duration{
		"authentication.webhook.cacheTTL":            c.Authentication.Webhook.CacheTTL.Duration,
		"authorization.webhook.cacheAuthorizedTTL":   c.Authorization.Webhook.CacheAuthorizedTTL.Duration,
		"authorization.webhook.cacheUnauthorizedTTL": c.Authorization.Webhook.CacheUnauthorizedTTL.Duration,
	} {
		p.want(ttl >= 0, path, ttl.String(), "no negative time")
	}
}

func (p *problems) node(c *Configuration) {
	p.want(c.NodeLeaseDurationSeconds > 0, "nodeLeaseDurationSeconds", c.NodeLeaseDurationSeconds, "more than 0")
	p.want(*c.NodeStatusMaxImages >= -1, "nodeStatusMaxImages", *c.NodeStatusMaxImages, "-1 or more")
	p.want(c.MaxPods >= 0, "maxPods", c.MaxPods, "0 or more")
	p.want(c.PodsPerCore >= 0, "podsPerCore", c.PodsPerCore, "0 or more")
	for path, period := range map[string]time.Duration{
		"nodeStatusUpdateFrequency": c.NodeStatusUpdateFrequency.Duration,
		"nodeStatusReportFrequency": c.NodeStatusReportFrequency.Duration,
		"syncFrequency":             c.SyncFrequency.Duration,
		"fileCheckFrequency":        c.FileCheckFrequency.Duration,
		"httpCheckFrequency":        c.HTTPCheckFrequency.Duration,
		"runtimeRequestTimeout":     c.RuntimeRequestTimeout.Duration,
	} {
		p.want(period > 0, path, period.String(), "more than 0")
	}
	transition := c.EvictionPressureTransitionPeriod.Duration
	p.want(transition >= 0, "evictionPressureTransitionPeriod", transition.String(), "no negative time")
	for _, taint := range c.RegisterWithTaints {
		if err := checkTaint(taint); err != nil {
			p.want(false, "registerWithTaints", taint.ToString(), err.Error())
		}
	}
	for _, pattern := range c.AllowedUnsafeSysctls {
		if err := checkSysctl(pattern); err != nil {
			p.want(false, "allowedUnsafeSysctls", pattern, err.Error())
		}
	}
}

// checkSysctl returns an error for a sysctl, or a beginning of several, that is none of a Pod's own namespaces: no runtime sets it.
func checkSysctl(pattern string) error {
	if !sysctlPattern.MatchString(pattern) || len(pattern) > maxSysctl {
		return errors.New("names such as net.core.somaxconn or kernel.msg*")
	}
	if namespace, _, _ := sysctl.GetNamespace(pattern); namespace == sysctl.UnknownNamespace {
		return errors.New("sysctls that a Pod has for itself: net.*, kernel.shm*, kernel.msg*, kernel.sem or fs.mqueue.*")
	}
	return nil
}

func checkTaint(taint corev1.Taint) error {
	if messages := validation.IsQualifiedName(taint.Key); len(messages) > 0 {
		return fmt.Errorf("another key: %s", messages[0])
	}
	if messages := validation.IsValidLabelValue(taint.Value); len(messages) > 0 {
		return fmt.Errorf("another value: %s", messages[0])
	}
	effects := []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}
	if !slices.Contains(effects, taint.Effect) {
		return fmt.Errorf("the effect NoSchedule, PreferNoSchedule or NoExecute")
	}
	if taint.TimeAdded != nil {
		return errors.New("no timeAdded")
	}
	return nil
}

func (p *problems) rates(c *Configuration) {
	for path, rate := range map[string]int32{
		"eventRecordQPS": *c.EventRecordQPS, "eventBurst": c.EventBurst, "kubeAPIQPS": *c.KubeAPIQPS, "kubeAPIBurst": c.KubeAPIBurst,
		"registryPullQPS": *c.RegistryPullQPS, "registryBurst": c.RegistryBurst,
	} {
		p.want(rate >= 0, path, rate, "no negative number")
	}
	p.want(c.RegistryBurst > 0 || *c.RegistryPullQPS == 0, "registryBurst", c.RegistryBurst, "1 or more, or registryPullQPS 0: no pull could start")
}

func (p *problems) images(c *Configuration) {
	high, low := *c.ImageGCHighThresholdPercent, *c.ImageGCLowThresholdPercent
	p.want(between(high, 0, 100), "imageGCHighThresholdPercent", high, "0 to 100")
	p.want(between(low, 0, 100), "imageGCLowThresholdPercent", low, "0 to 100")
	p.want(low < high, "imageGCLowThresholdPercent", low, fmt.Sprintf("less than imageGCHighThresholdPercent, which is %d", high))
	least, most := c.ImageMinimumGCAge.Duration, c.ImageMaximumGCAge.Duration
	p.want(least >= 0, "imageMinimumGCAge", least.String(), "no negative time")
	p.want(most == 0 || most > least, "imageMaximumGCAge", most.String(), "0, or more than imageMinimumGCAge, which is "+least.String())
	parallel := ptr.Deref(c.MaxParallelImagePulls, 1)
	p.want(parallel >= 1, "maxParallelImagePulls", parallel, "1 or more")
	p.want(parallel <= 1 || !*c.SerializeImagePulls, "maxParallelImagePulls", parallel, "1, or serializeImagePulls false")
	policy := c.ImagePullCredentialsVerificationPolicy
	p.want(slices.Contains([]kubeletconfig.ImagePullCredentialsVerificationPolicy{
		kubeletconfig.NeverVerify, kubeletconfig.NeverVerifyPreloadedImages, kubeletconfig.NeverVerifyAllowlistedImages, kubeletconfig.AlwaysVerify,
	}, policy), "imagePullCredentialsVerificationPolicy", string(policy),
		"NeverVerify, NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages or AlwaysVerify")
	p.want(len(c.PreloadedImagesVerificationAllowlist) == 0 || policy == kubeletconfig.NeverVerifyAllowlistedImages,
		"preloadedImagesVerificationAllowlist", fmt.Sprint(c.PreloadedImagesVerificationAllowlist), "none, or the policy NeverVerifyAllowlistedImages")
	if policy == kubeletconfig.NeverVerifyAllowlistedImages {
		if err := pullrecords.ValidatePolicy(policy, c.PreloadedImagesVerificationAllowlist); err != nil {
			p.errs = append(p.errs, err)
		}
	}
}

func (p *problems) logs(c *Configuration) {
	size, err := quantity.Parse(c.ContainerLogMaxSize)
	p.want(err == nil && size.Sign() != 0, "containerLogMaxSize", c.ContainerLogMaxSize, "a size such as 10Mi, or a negative one to rotate no log")
	p.want(*c.ContainerLogMaxFiles > 1, "containerLogMaxFiles", *c.ContainerLogMaxFiles, "2 or more")
	p.want(*c.ContainerLogMaxWorkers >= 1, "containerLogMaxWorkers", *c.ContainerLogMaxWorkers, "1 or more")
	interval := c.ContainerLogMonitorInterval.Duration
	p.want(interval >= 3*time.Second, "containerLogMonitorInterval", interval.String(), "3s or more")
	ascii := func(char rune) bool { return char > 0 && char <= math.MaxInt8 }
	dir := c.PodLogsDir
	p.want(filepath.IsAbs(dir) && filepath.Clean(dir) == dir && !slices.ContainsFunc([]rune(dir), func(char rune) bool { return !ascii(char) }),
		"podLogsDir", dir, "a clean absolute path of ASCII characters")
	p.logging(c)
}

func (p *problems) logging(c *Configuration) {
	l := &c.Logging
	p.want(l.Format == logText || l.Format == logJSON, "logging.format", l.Format, "text or json")
	p.want(l.FlushFrequency.Duration.Duration > 0, "logging.flushFrequency", l.FlushFrequency.Duration.Duration.String(), "more than 0")
	p.want(l.Verbosity <= math.MaxInt32, "logging.verbosity", uint32(l.Verbosity), "at most 2147483647")
	p.want(len(l.VModule) == 0 || l.Format == logText, "logging.vmodule", l.VModule, "none, or logging.format text")
	for _, item := range l.VModule {
		p.want(item.FilePattern != "" && !strings.ContainsAny(item.FilePattern, "=,"), "logging.vmodule", item.FilePattern,
			"a pattern of file names, without = and comma")
		p.want(item.Verbosity <= math.MaxInt32, "logging.vmodule", uint32(item.Verbosity), "at most 2147483647")
	}
}

func (p *problems) resources(c *Configuration) {
	p.want(c.SystemCgroups == "" || c.CgroupRoot != "", "systemCgroups", c.SystemCgroups, "none, or a cgroupRoot")
	p.want(c.CgroupDriver == string(cm.DriverCgroupfs) || c.CgroupDriver == string(cm.DriverSystemd), "cgroupDriver", c.CgroupDriver, "cgroupfs or systemd")
	period := c.CPUCFSQuotaPeriod.Duration
	p.want(between(period, time.Millisecond, time.Second), "cpuCFSQuotaPeriod", period.String(), "1ms to 1s")
	swap := cm.SwapBehavior(c.MemorySwap.SwapBehavior)
	p.want(swap.Validate() == nil, "memorySwap.swapBehavior", string(swap), "NoSwap or LimitedSwap")
	backoff := c.CrashLoopBackOff.MaxContainerRestartPeriod.Duration
	p.want(between(backoff, time.Second, maxContainerBackoff), "crashLoopBackOff.maxContainerRestartPeriod", backoff.String(), "1s to 5m0s")
	if c.UserNamespaces != nil && c.UserNamespaces.IDsPerPod != nil {
		ids := *c.UserNamespaces.IDsPerPod
		p.want(ids >= idBlock && ids%idBlock == 0 && ids <= math.MaxUint32, "userNamespaces.idsPerPod", ids, "a multiple of 65536 below 4294967296")
	}
	p.want(slices.Contains([]string{kubeletconfig.HairpinNone, kubeletconfig.HairpinVeth, kubeletconfig.PromiscuousBridge}, c.HairpinMode),
		"hairpinMode", c.HairpinMode, "promiscuous-bridge, hairpin-veth or none")
	p.eviction(c)
}

func (p *problems) reservations(c *Configuration) {
	for path, list := range map[string]map[string]string{"systemReserved": c.SystemReserved, "kubeReserved": c.KubeReserved} {
		if _, err := cm.ParseReserved(path, list); err != nil {
			p.errs = append(p.errs, err)
		}
	}
	enforcement := cm.Enforcement{
		Enforce: c.EnforceNodeAllocatable, KubeReservedCgroup: c.KubeReservedCgroup, SystemReservedCgroup: c.SystemReservedCgroup,
	}
	if err := enforcement.Validate(); err != nil {
		p.errs = append(p.errs, err)
	}
	if c.ReservedSystemCPUs == "" {
		return
	}
	_, err := cpulist.Parse(c.ReservedSystemCPUs)
	p.want(err == nil, "reservedSystemCPUs", c.ReservedSystemCPUs, "a list of CPUs such as 0-1,4")
	p.want(c.SystemReservedCgroup == "" && c.KubeReservedCgroup == "", "reservedSystemCPUs", c.ReservedSystemCPUs,
		"none, or neither systemReservedCgroup nor kubeReservedCgroup")
}

func (p *problems) managers(c *Configuration) {
	for path, choice := range map[string]struct {
		value   string
		choices []string
	}{
		"cpuManagerPolicy":    {c.CPUManagerPolicy, []string{policyNone, "static"}},
		"memoryManagerPolicy": {c.MemoryManagerPolicy, []string{kubeletconfig.NoneMemoryManagerPolicy, kubeletconfig.StaticMemoryManagerPolicy}},
		"topologyManagerPolicy": {c.TopologyManagerPolicy, []string{kubeletconfig.NoneTopologyManagerPolicy, kubeletconfig.BestEffortTopologyManagerPolicy,
			kubeletconfig.RestrictedTopologyManagerPolicy, kubeletconfig.SingleNumaNodeTopologyManagerPolicy}},
		"topologyManagerScope": {c.TopologyManagerScope, []string{kubeletconfig.ContainerTopologyManagerScope, kubeletconfig.PodTopologyManagerScope}},
		"memoryReservationPolicy": {string(c.MemoryReservationPolicy), []string{
			string(kubeletconfig.NoneMemoryReservationPolicy), string(kubeletconfig.TieredReservationMemoryReservationPolicy)}},
		"configMapAndSecretChangeDetectionStrategy": {string(c.ConfigMapAndSecretChangeDetectionStrategy), []string{
			string(kubeletconfig.GetChangeDetectionStrategy), string(kubeletconfig.TTLCacheChangeDetectionStrategy), string(kubeletconfig.WatchChangeDetectionStrategy)}},
	} {
		p.want(slices.Contains(choice.choices, choice.value), path, choice.value, "one of "+fmt.Sprintf("%q", choice.choices))
	}
	policy := c.MemoryReservationPolicy
	p.want(policy != kubeletconfig.TieredReservationMemoryReservationPolicy || c.FeatureGates[gateMemoryQoS], "memoryReservationPolicy", string(policy),
		"None, or the feature gate MemoryQoS")
	factor := *c.MemoryThrottlingFactor
	p.want(factor > 0 && factor <= 1, "memoryThrottlingFactor", factor, "more than 0, at most 1")
}

func (p *problems) shutdown(c *Configuration) {
	all, critical := c.ShutdownGracePeriod.Duration, c.ShutdownGracePeriodCriticalPods.Duration
	possible := func(period time.Duration) bool { return period == 0 || period >= time.Second }
	p.want(possible(all), "shutdownGracePeriod", all.String(), "0, or 1s or more")
	p.want(possible(critical), "shutdownGracePeriodCriticalPods", critical.String(), "0, or 1s or more")
	p.want(critical <= all, "shutdownGracePeriodCriticalPods", critical.String(), "at most shutdownGracePeriod, which is "+all.String())
	p.want(len(c.ShutdownGracePeriodByPodPriority) == 0 || all == 0 && critical == 0, "shutdownGracePeriodByPodPriority",
		len(c.ShutdownGracePeriodByPodPriority), "none, or neither shutdownGracePeriod nor shutdownGracePeriodCriticalPods")
	for _, period := range c.ShutdownGracePeriodByPodPriority {
		p.want(between(period.ShutdownGracePeriodSeconds, 0, math.MaxInt32), "shutdownGracePeriodByPodPriority", period.ShutdownGracePeriodSeconds,
			"0 or more seconds, and at most 2147483647") // more than a time.Duration can have would be negative
	}
}

// gates checks the fields that a gate which is off forbids.
func (p *problems) gates(c *Configuration) {
	without := func(gate, path string, used bool, value any, want string) {
		p.want(!used || !isOff(c, gate), path, value, want+", or the feature gate "+gate)
	}
	period := c.CPUCFSQuotaPeriod.Duration
	without(gateQuotaPeriod, "cpuCFSQuotaPeriod", period != defaultQuotaPeriod, period.String(), defaultQuotaPeriod.String())
	all, critical := c.ShutdownGracePeriod.Duration, c.ShutdownGracePeriodCriticalPods.Duration
	without(gateShutdown, "shutdownGracePeriod", all > 0 || critical > 0, all.String(), "0s")
	priorities := len(c.ShutdownGracePeriodByPodPriority)
	for _, gate := range []string{gateShutdown, gateShutdownPriorities} {
		without(gate, "shutdownGracePeriodByPodPriority", priorities > 0, priorities, "none")
	}
	distribute, set := c.CPUManagerPolicyOptions[optionDistribute]
	without(gateServingRotation, "serverTLSBootstrap", c.ServerTLSBootstrap, c.ServerTLSBootstrap, "false")
	without(gateBetaCPUOptions, cpuOptionsPath, set, optionDistribute+"="+distribute, "other options")
}

func (p *problems) machine(c *Configuration) {
	p.want(between(*c.OOMScoreAdj, -1000, 1000), "oomScoreAdj", *c.OOMScoreAdj, "-1000 to 1000")
	p.want(c.MaxOpenFiles >= 0, "maxOpenFiles", c.MaxOpenFiles, "0 or more")
	for path, bit := range map[string]int32{"iptablesMasqueradeBit": *c.IPTablesMasqueradeBit, "iptablesDropBit": *c.IPTablesDropBit} {
		p.want(between(bit, 0, 31), path, bit, "0 to 31")
	}
	if err := tracingapi.ValidateTracingConfiguration(c.Tracing, nil, field.NewPath("tracing")).ToAggregate(); err != nil {
		p.errs = append(p.errs, err)
	}
	p.want(c.ContainerRuntimeEndpoint != "", "containerRuntimeEndpoint", c.ContainerRuntimeEndpoint, "the socket of the container runtime")
}
