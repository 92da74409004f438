package settings

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// TestTableHasEachField compares the table with the type, so that a new field of Kubernetes cannot be forgotten.
func TestTableHasEachField(t *testing.T) {
	var paths []string
	for _, f := range Fields() {
		paths = append(paths, f.Path)
		require.NotEmpty(t, f.Does, f.Path)
		require.NotEmpty(t, f.Support, f.Path)
		require.Equal(t, f.Support == Limited || f.Support == Refused || f.Support == Warned, f.Limit != "",
			"%s: only refused values and those that have no effect have a reason", f.Path)
		if f.Support == Limited {
			require.NotNil(t, f.Limits, f.Path)
		}
	}
	leaves := fieldPaths(reflect.TypeFor[Configuration](), "")
	require.Greater(t, len(leaves), 125)
	slices.Sort(paths)
	slices.Sort(leaves)
	require.Equal(t, leaves, paths)
}

// fieldPaths returns the paths of the fields of a struct, those of structs of configuration APIs in place of these structs.
func fieldPaths(kind reflect.Type, prefix string) []string {
	var paths []string
	for field := range kind.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		of := field.Type
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		api := strings.Contains(of.PkgPath(), "/config/v1beta1") || strings.Contains(of.PkgPath(), "/logs/api/") || strings.Contains(of.PkgPath(), "/tracing/api/")
		switch {
		case field.Name == "TypeMeta":
		case strings.Contains(options, "inline"):
			paths = append(paths, fieldPaths(of, prefix)...)
		case of.Kind() == reflect.Struct && api && of.Name() != "TimeOrMetaDuration":
			paths = append(paths, fieldPaths(of, prefix+name+".")...)
		default:
			paths = append(paths, prefix+name)
		}
	}
	return paths
}

// samples are values of fields that differ from the default, beside the values that they need.
func samples() map[string]struct{ needs, text string } {
	type sample = struct{ needs, text string }
	out := map[string]sample{
		"tlsCertFile":       {"tlsPrivateKeyFile: /k\ntlsCertFile: /b", "tlsPrivateKeyFile: /k\ntlsCertFile: /c"},
		"tlsPrivateKeyFile": {"tlsCertFile: /c\ntlsPrivateKeyFile: /b", "tlsCertFile: /c\ntlsPrivateKeyFile: /k"},
		"preloadedImagesVerificationAllowlist": {"imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages",
			"imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: [a/b]"},
		"maxParallelImagePulls":  {"serializeImagePulls: false", "serializeImagePulls: false\nmaxParallelImagePulls: 3"},
		"memoryThrottlingFactor": {"featureGates: {MemoryQoS: true}", "featureGates: {MemoryQoS: true}\nmemoryThrottlingFactor: 0.5"},
		"memoryReservationPolicy": {"featureGates: {MemoryQoS: true}",
			"featureGates: {MemoryQoS: true}\nmemoryReservationPolicy: TieredReservation"},
		"shutdownGracePeriodCriticalPods": {"shutdownGracePeriod: 30s", "shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s"},
		"cpuManagerPolicy":                {"kubeReserved: {cpu: 1}", "kubeReserved: {cpu: 1}\ncpuManagerPolicy: static"},
		"cpuManagerPolicyOptions": {"kubeReserved: {cpu: 1}\ncpuManagerPolicy: static",
			"kubeReserved: {cpu: 1}\ncpuManagerPolicy: static\ncpuManagerPolicyOptions: {full-pcpus-only: 'true'}"},
		"topologyManagerScope": {"topologyManagerPolicy: restricted", "topologyManagerPolicy: restricted\ntopologyManagerScope: pod"},
		"topologyManagerPolicyOptions": {"topologyManagerPolicy: restricted",
			"topologyManagerPolicy: restricted\ntopologyManagerPolicyOptions: {max-allowable-numa-nodes: '16'}"},
		"systemCgroups":        {"cgroupRoot: /", "cgroupRoot: /\nsystemCgroups: /s"},
		"systemReservedCgroup": {"", "systemReservedCgroup: /s"},
		"evictionSoft": {"evictionSoftGracePeriod: {memory.available: 1m}",
			"evictionSoftGracePeriod: {memory.available: 1m}\nevictionSoft: {memory.available: 1Gi}"},
		"evictionSoftGracePeriod":      {"", "evictionSoftGracePeriod: {memory.available: 1m}"},
		"mergeDefaultEvictionSettings": {}, // TestEvictionDefaultsAreMerged of package options
	}
	for _, line := range strings.Split(strings.TrimSpace(simpleSamples), "\n") {
		path, value, _ := strings.Cut(line, ": ")
		names := strings.Split(path, ".")
		text := value
		for i := len(names) - 1; i >= 0; i-- {
			text = names[i] + ": " + text
			if i > 0 {
				text = "{" + text + "}"
			}
		}
		out[path] = sample{"", text}
	}
	return out
}

const simpleSamples = `
enableServer: false
address: 10.0.0.1
port: 1234
readOnlyPort: 1235
healthzPort: 1236
healthzBindAddress: 10.0.0.1
tlsCipherSuites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]
tlsCurvePreferences: [29]
tlsMinVersion: VersionTLS13
rotateCertificates: true
serverTLSBootstrap: true
authentication.x509.clientCAFile: /ca
authentication.webhook.enabled: false
authentication.webhook.cacheTTL: 1s
authentication.anonymous.enabled: true
authorization.mode: AlwaysAllow
authorization.webhook.cacheAuthorizedTTL: 1s
authorization.webhook.cacheUnauthorizedTTL: 1s
enableDebuggingHandlers: false
enableContentionProfiling: true
enableProfilingHandler: false
enableDebugFlagsHandler: false
enableSystemLogHandler: false
enableSystemLogQuery: true
streamingConnectionIdleTimeout: 1m
registerNode: false
registerWithTaints: [{key: a, effect: NoSchedule}]
providerID: cloud://a
nodeStatusUpdateFrequency: 20s
nodeStatusReportFrequency: 1m
nodeLeaseDurationSeconds: 10
nodeStatusMaxImages: -1
eventRecordQPS: 1
eventBurst: 1
kubeAPIQPS: 1
kubeAPIBurst: 1
contentType: application/json
allowedUnsafeSysctls: [kernel.msg*]
podCIDR: 10.9.0.0/16
staticPodPath: /pods
staticPodURL: http://127.0.0.1/pods
staticPodURLHeader: {a: [b]}
fileCheckFrequency: 1s
httpCheckFrequency: 1s
syncFrequency: 10s
maxPods: 7
podsPerCore: 3
podLogsDir: /logs
clusterDNS: [10.0.0.10]
clusterDomain: example.org
resolvConf: ""
crashLoopBackOff.maxContainerRestartPeriod: 10s
seccompDefault: true
volumeStatsAggPeriod: 10s
containerRuntimeEndpoint: unix:///run/a.sock
imageServiceEndpoint: unix:///run/b.sock
runtimeRequestTimeout: 10s
userNamespaces.idsPerPod: 131072
registryPullQPS: 1
registryBurst: 1
serializeImagePulls: false
imagePullCredentialsVerificationPolicy: AlwaysVerify
imageMinimumGCAge: 1s
imageMaximumGCAge: 1h
imageGCHighThresholdPercent: 90
imageGCLowThresholdPercent: 70
containerLogMaxSize: 1Mi
containerLogMaxFiles: 2
containerLogMaxWorkers: 2
containerLogMonitorInterval: 5s
cgroupRoot: /a
cgroupDriver: systemd
kubeletCgroups: /a
podPidsLimit: 9
cpuCFSQuota: false
cpuCFSQuotaPeriod: 10ms
singleProcessOOMKill: true
memorySwap.swapBehavior: LimitedSwap
failSwapOn: false
failCgroupV1: false
systemReserved: {cpu: 100m}
kubeReserved: {cpu: 100m}
reservedSystemCPUs: 0-1
kubeReservedCgroup: /k
enforceNodeAllocatable: [none]
memoryManagerPolicy: Static
reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]
topologyManagerPolicy: restricted
evictionHard: {imagefs.available: 50%}
evictionPressureTransitionPeriod: 30s
evictionMaxPodGracePeriod: -1
evictionMinimumReclaim: {nodefs.available: 5%}
oomScoreAdj: -1
maxOpenFiles: 100
protectKernelDefaults: true
makeIPTablesUtilChains: false
featureGates: {MemoryQoS: true}
logging.format: json
logging.verbosity: 3
logging.vmodule: [{filePattern: a, verbosity: 3}]
shutdownGracePeriod: 30s
shutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 5}]
tracing.endpoint: 127.0.0.1:4317
tracing.samplingRatePerMillion: 5
`

// TestHonouredFieldsChangeSettings shows that no field is accepted and ignored.
func TestHonouredFieldsChangeSettings(t *testing.T) {
	all := samples()
	for _, f := range Fields() {
		if f.Support != Honoured && f.Support != Limited {
			continue
		}
		sample, ok := all[f.Path]
		require.True(t, ok, "%s has no sample", f.Path)
		if sample.text == "" {
			continue
		}
		require.NotEqual(t, convertText(t, sample.needs), convertText(t, sample.text), f.Path)
	}
}

// TestOtherFieldsAreRefusedOrWarnedAbout gives each field that is not honoured another value.
func TestOtherFieldsAreRefusedOrWarnedAbout(t *testing.T) {
	for path, text := range map[string]string{
		"enableControllerAttachDetach":              "enableControllerAttachDetach: false",
		"configMapAndSecretChangeDetectionStrategy": "configMapAndSecretChangeDetectionStrategy: Cache",
		"volumePluginDir":                           "volumePluginDir: /plugins",
		"runOnce":                                   "runOnce: true",
		"cgroupsPerQOS":                             "cgroupsPerQOS: false\nenforceNodeAllocatable: [none]",
		"localStorageCapacityIsolation":             "localStorageCapacityIsolation: false",
		"qosReserved":                               "qosReserved: {memory: 50%}",
		"logging.options.text.splitStream":          "logging: {options: {text: {splitStream: true}}}",
		"logging.options.text.infoBufferSize":       "logging: {options: {text: {infoBufferSize: 1Ki}}}",
		"logging.options.json.splitStream":          "logging: {options: {json: {splitStream: true}}}",
		"logging.options.json.infoBufferSize":       "logging: {options: {json: {infoBufferSize: 1Ki}}}",
		"cpuManagerPolicyOptions":                   "kubeReserved: {cpu: 1}\ncpuManagerPolicy: static\ncpuManagerPolicyOptions: {align-by-socket: 'true'}",
		"iptablesMasqueradeBit":                     "iptablesMasqueradeBit: 3",
		"iptablesDropBit":                           "iptablesDropBit: 3",
		"featureGates":                              "featureGates: {AllAlpha: true}",
		"tlsMinVersion":                             "tlsMinVersion: VersionTLS10",
	} {
		chosen, err := Convert(parse(t, text))
		index := slices.IndexFunc(Fields(), func(f Field) bool { return f.Path == path })
		require.GreaterOrEqual(t, index, 0, path)
		switch f := Fields()[index]; f.Support {
		case Warned:
			require.NoError(t, err, path)
			require.Contains(t, strings.Join(chosen.Warnings, "\n"), f.Name(), path)
		case Limited, Refused:
			require.ErrorContains(t, err, f.Name(), path)
			require.ErrorContains(t, err, f.Limit, path)
		}
	}
}

// TestThresholdsOfContainersAreWarnedAbout configures what the file systems decide.
func TestThresholdsOfContainersAreWarnedAbout(t *testing.T) {
	chosen, err := Convert(parse(t, "evictionHard: {containerfs.available: 50%}"))
	require.NoError(t, err)
	require.Contains(t, strings.Join(chosen.Warnings, "\n"), "containerfs.available<50%: no effect")
	for text, want := range map[string]string{
		"evictionHard: {disk.free: 1Gi}":                                                     "evictionHard disk.free=1Gi: unknown signal",
		"evictionHard: {memory.available: lots}":                                             "evictionHard memory.available=lots: want an amount",
		"evictionSoft: {memory.available: 1Gi}":                                              "set evictionSoftGracePeriod of memory.available, too",
		"evictionSoftGracePeriod: {memory.available: 1}":                                     "want a duration such as 1m30s",
		"evictionMinimumReclaim: {nodefs.available: 120%}":                                   "want a percentage, 0% to 100%",
		"evictionHard: {allocatableMemory.available: 100Mi}\nenforceNodeAllocatable: [none]": "the limit of all Pods",
	} {
		_, err := Convert(parse(t, text))
		require.ErrorContains(t, err, want, text)
	}
}

// TestConfigurationInForceIsAccepted converts what /configz shows, which tools modify and write to a file.
func TestConfigurationInForceIsAccepted(t *testing.T) {
	first := convertText(t, "evictionHard: {memory.available: 250Mi}\nstaticPodPath: /a\nmaxPods: 3")
	chosen, err := Convert(parse(t, "evictionHard: {memory.available: 250Mi}\nstaticPodPath: /a\nmaxPods: 3"))
	require.NoError(t, err)
	again, err := Convert(chosen.Source)
	require.NoError(t, err)
	require.Equal(t, first, inUse(again))
}

func parse(t *testing.T, text string) *Configuration {
	t.Helper()
	c := &Configuration{}
	require.NoError(t, yaml.UnmarshalStrict([]byte(text), c))
	return c
}

func convertText(t *testing.T, text string) Settings {
	t.Helper()
	chosen, err := Convert(parse(t, text))
	require.NoError(t, err, text)
	return inUse(chosen)
}

// inUse returns what the program works with.
func inUse(chosen *Settings) Settings {
	out := *chosen
	out.Source, out.Agent.Source, out.Warnings = nil, nil, nil
	return out
}

// TestMessagesNameTimesAsFilesHaveThem names negative times, which are refused.
func TestMessagesNameTimesAsFilesHaveThem(t *testing.T) {
	c := New()
	c.StreamingConnectionIdleTimeout.Duration = -time.Second
	c.Logging.FlushFrequency.Duration.Duration = -time.Minute
	err := Validate(c)
	require.ErrorContains(t, err, `streamingConnectionIdleTimeout (--streaming-connection-idle-timeout) "-1s": want no negative time`)
	require.ErrorContains(t, err, `logging.flushFrequency (--log-flush-frequency) "-1m0s": want more than 0`)
}

// TestWrongValuesAreNamedBeforeAKubeletStarts has values that upstream's validation refuses: a kubelet that starts with them would fail later,
// again and again. A log size of 0 is accepted upstream, and rotates each log at each check.
func TestWrongValuesAreNamedBeforeAKubeletStarts(t *testing.T) {
	for text, want := range map[string]string{
		"tracing: {samplingRatePerMillion: -1}":                         "tracing.samplingRatePerMillion",
		"tracing: {samplingRatePerMillion: 2000000}":                    "tracing.samplingRatePerMillion",
		"tracing: {endpoint: 'http://a b'}":                             "tracing.endpoint",
		"containerLogMaxSize: '0'":                                      "containerLogMaxSize",
		"logging: {vmodule: [{filePattern: 'a=b', verbosity: 1}]}":      "logging.vmodule",
		"logging: {vmodule: [{filePattern: a, verbosity: 3000000000}]}": "want at most 2147483647",
		"logging: {verbosity: 3000000000}":                              "want at most 2147483647",
		"{imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages, preloadedImagesVerificationAllowlist: ['a*b']}": `preloadedImagesVerificationAllowlist: "a*b"`,
		"{imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages, preloadedImagesVerificationAllowlist: ['a:1']}": `preloadedImagesVerificationAllowlist: "a:1"`,
	} {
		c := &Configuration{}
		require.NoError(t, yaml.UnmarshalStrict([]byte(text), c))
		_, err := Convert(c)
		require.ErrorContains(t, err, want, text)
	}
	c := &Configuration{}
	require.NoError(t, yaml.UnmarshalStrict([]byte("{containerLogMaxSize: '-1', imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages, "+
		"preloadedImagesVerificationAllowlist: ['registry.example.com/*', busybox], tracing: {endpoint: 'localhost:4317', samplingRatePerMillion: 100}}"), c))
	_, err := Convert(c)
	require.NoError(t, err)
}

// TestLogLinksAreWhereCollectorsSearch: log collectors are configured for /var/log/containers, wherever the logs themselves are.
func TestLogLinksAreWhereCollectorsSearch(t *testing.T) {
	for _, dir := range []string{"", "/data/log/pods"} {
		chosen, err := Convert(&Configuration{PodLogsDir: dir})
		require.NoError(t, err)
		require.Equal(t, "/var/log/containers", chosen.Agent.Logs.ContainersDir)
		require.Equal(t, cmp.Or(dir, "/var/log/pods"), chosen.Agent.Logs.PodsDir)
	}
}

// TestAllowedSysctlsAreThoseOfNamespaces: allowing another one has no effect but Pods whose containers never start.
func TestAllowedSysctlsAreThoseOfNamespaces(t *testing.T) {
	for _, pattern := range []string{"kernel.msg*", "kernel.shm_rmid_forced", "net.core.somaxconn", "net/ipv4/conf/eth0.1/forwarding", "net.*", "fs.mqueue.*"} {
		_, err := Convert(&Configuration{AllowedUnsafeSysctls: []string{pattern}})
		require.NoError(t, err)
	}
	for _, pattern := range []string{"vm.max_map_count", "kernel.*", "*", "net.*.x", "net..x", "Net.x", "net.x ", ""} {
		_, err := Convert(&Configuration{AllowedUnsafeSysctls: []string{"net.*", pattern}})
		require.ErrorContains(t, err, fmt.Sprintf("allowedUnsafeSysctls (--allowed-unsafe-sysctls) %q: want ", pattern))
	}
}
