package agent

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/cri/fake"
	"github.com/berth-dev/berth/kubelet/server"
)

// TestConfigzReportsEffectiveConfiguration shows defaults for what is not configured.
func TestConfigzReportsEffectiveConfiguration(t *testing.T) {
	shown := func(change func(*Config)) *kubeletconfig.KubeletConfiguration {
		config := Config{
			Node: NodeConfig{Name: "n", IPs: []net.IP{net.IPv4(10, 0, 0, 1)}}, RootDir: t.TempDir(),
			Logs: LogsConfig{PodsDir: filepath.Join(t.TempDir(), "log")},
		}
		change(&config)
		a, err := New(Deps{Runtime: fake.New(clocktesting.NewFakePassiveClock(time.Now()))}, config)
		require.NoError(t, err)
		defer func() { require.NoError(t, a.Close()) }()
		return a.ServerDeps(server.Auth{}).Configz()["kubeletconfig"].(*kubeletconfig.KubeletConfiguration)
	}
	c := shown(func(*Config) {})
	require.Equal(t, "KubeletConfiguration", c.Kind)
	require.EqualValues(t, 110, c.MaxPods)
	require.EqualValues(t, 4, *c.MaxParallelImagePulls)
	require.False(t, *c.SerializeImagePulls)
	require.Zero(t, *c.RegistryPullQPS)
	require.Equal(t, kubeletconfig.NeverVerifyPreloadedImages, c.ImagePullCredentialsVerificationPolicy)
	require.EqualValues(t, 100, *c.ImageGCHighThresholdPercent, "never")
	require.Equal(t, "10Mi", c.ContainerLogMaxSize)
	require.EqualValues(t, 5, *c.ContainerLogMaxFiles)
	require.False(t, *c.EnableServer)
	require.True(t, *c.EnableDebuggingHandlers)
	require.False(t, *c.EnableSystemLogHandler)
	require.Zero(t, *c.HealthzPort)
	require.True(t, *c.CPUCFSQuota)
	require.Equal(t, 100*time.Millisecond, c.CPUCFSQuotaPeriod.Duration)
	require.False(t, *c.SeccompDefault)
	require.EqualValues(t, 1, *c.ContainerLogMaxWorkers)
	require.Equal(t, 10*time.Second, c.ContainerLogMonitorInterval.Duration)
	require.Nil(t, c.MemoryThrottlingFactor)
	require.Nil(t, c.Tracing)

	c = shown(func(config *Config) {
		config.Images.MaxParallelPulls, config.Images.PullQPS, config.Images.PullBurst, config.Images.GCHigh, config.Images.GCLow = 1, 5, 10, 85, 80
		config.Images.Verification, config.Images.NotVerified = kubeletconfig.NeverVerifyAllowlistedImages, []string{"reg.example/*"}
		config.Logs.MaxSize, config.Pods.MaxBackoff, config.Images.MaxAge = 1<<20, time.Minute, time.Hour
		config.Server.HealthzAddress, config.Server.NoDebugging, config.Server.LogDir, config.Server.LogQuery = "127.0.0.1:10248", true, "/var/log", true
		config.Server.Profiling, config.Server.Contention = true, true
		config.Pods.SeccompDefault, config.Cgroups.NoCPUQuota, config.Cgroups.CPUQuotaPeriod = true, true, time.Millisecond
		config.Logs.MaxWorkers, config.Logs.MonitorPeriod = 3, 5*time.Second
		config.Cgroups.MemoryQoS = &cm.MemoryQoSConfig{ReservationPolicy: kubeletconfig.TieredReservationMemoryReservationPolicy}
		config.Tracing = &tracingapi.TracingConfiguration{Endpoint: ptr.To("127.0.0.1:1")}
	})
	require.EqualValues(t, 3, *c.ContainerLogMaxWorkers)
	require.Equal(t, 5*time.Second, c.ContainerLogMonitorInterval.Duration)
	require.True(t, c.FeatureGates["MemoryQoS"])
	require.InDelta(t, 0.9, *c.MemoryThrottlingFactor, 0)
	require.Equal(t, kubeletconfig.TieredReservationMemoryReservationPolicy, c.MemoryReservationPolicy)
	require.Equal(t, "127.0.0.1:1", *c.Tracing.Endpoint)
	require.True(t, *c.SeccompDefault)
	require.False(t, *c.CPUCFSQuota)
	require.Equal(t, time.Millisecond, c.CPUCFSQuotaPeriod.Duration)
	require.True(t, *c.SerializeImagePulls)
	require.EqualValues(t, 5, *c.RegistryPullQPS)
	require.EqualValues(t, 10, c.RegistryBurst)
	require.Equal(t, []string{"reg.example/*"}, c.PreloadedImagesVerificationAllowlist)
	require.EqualValues(t, 80, *c.ImageGCLowThresholdPercent)
	require.Equal(t, time.Hour, c.ImageMaximumGCAge.Duration)
	require.Equal(t, "1Mi", c.ContainerLogMaxSize)
	require.Equal(t, time.Minute, c.CrashLoopBackOff.MaxContainerRestartPeriod.Duration)
	require.EqualValues(t, 10248, *c.HealthzPort)
	require.Equal(t, "127.0.0.1", c.HealthzBindAddress)
	require.False(t, *c.EnableDebuggingHandlers)
	require.True(t, *c.EnableSystemLogHandler)
	require.True(t, *c.EnableSystemLogQuery)
	require.True(t, *c.EnableProfilingHandler)
	require.True(t, c.EnableContentionProfiling)
	require.False(t, *c.EnableDebugFlagsHandler)
	c = shown(func(config *Config) { config.Server.DebugFlags = true })
	require.True(t, *c.EnableDebugFlagsHandler)
	require.False(t, *c.EnableProfilingHandler)
}

// TestConfigzHasTheHeadersOfStaticPods as upstream's has them: who may read configz may read the kubelet's configuration.
func TestConfigzHasTheHeadersOfStaticPods(t *testing.T) {
	source := &kubeletconfig.KubeletConfiguration{StaticPodURLHeader: map[string][]string{"X-Token": {"a", "b"}}}
	got := configuration(&Config{Source: source}, cm.DriverCgroupfs)
	require.Equal(t, source.StaticPodURLHeader, got.StaticPodURLHeader)
}
