package settings

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGatesThatAreSwitched sets each gate that can be switched to the other state: it is accepted, and what it forbids is refused.
func TestGatesThatAreSwitched(t *testing.T) {
	for _, gate := range Gates() {
		other := "true"
		if gate.Default {
			other = "false"
		}
		text := "featureGates: {" + gate.Name + ": " + other + "}"
		_, err := Convert(parse(t, text))
		switch {
		case gate.Locked:
			require.ErrorContains(t, err, "Kubernetes has locked it", gate.Name)
		case breaksOthers(gate):
			require.ErrorContains(t, err, ", which is off: switch both", gate.Name)
		case gate.Kubelet && gate.Here == gate.Default && !slices.Contains(switched(), gate.Name):
			require.ErrorContains(t, err, "the feature cannot be switched in this kubelet", gate.Name)
		default:
			require.NoError(t, err, gate.Name)
		}
	}
	for text, want := range map[string]string{
		"featureGates: {InPlacePodLevelResourcesVerticalScaling: false}":                                                   "cannot be switched",
		"featureGates: {CustomCPUCFSQuotaPeriod: false}\ncpuCFSQuotaPeriod: 10ms":                                          "want 100ms, or the feature gate CustomCPUCFSQuotaPeriod",
		"featureGates: {RotateKubeletServerCertificate: false}\nserverTLSBootstrap: true":                                  "want false, or the feature gate RotateKubeletServerCertificate",
		"featureGates: {GracefulNodeShutdown: false}\nshutdownGracePeriod: 10s":                                            "want 0s, or the feature gate GracefulNodeShutdown",
		"featureGates: {GracefulNodeShutdown: false}\nshutdownGracePeriodByPodPriority: [{priority: 1}]":                   "or the feature gate GracefulNodeShutdown",
		"featureGates: {GracefulNodeShutdownBasedOnPodPriority: false}\nshutdownGracePeriodByPodPriority: [{priority: 1}]": "GracefulNodeShutdownBasedOnPodPriority",
		"featureGates: {CPUManagerPolicyBetaOptions: false}\nkubeReserved: {cpu: 1}\ncpuManagerPolicy: static\n" +
			"cpuManagerPolicyOptions: {distribute-cpus-across-numa: 'true'}": "want other options, or the feature gate CPUManagerPolicyBetaOptions",
	} {
		_, err := Convert(parse(t, text))
		require.ErrorContains(t, err, want, text)
	}
	for text, want := range map[string]string{
		"GracefulNodeShutdown: false": "GracefulNodeShutdownBasedOnPodPriority is on and needs GracefulNodeShutdown, which is off",
		"PodLevelResources: false":    "InPlacePodLevelResourcesVerticalScaling is on and needs PodLevelResources, which is off",
	} {
		_, err := Convert(parse(t, "featureGates: {"+text+"}"))
		require.ErrorContains(t, err, want, text)
	}
	_, err := Convert(parse(t, "featureGates: {GracefulNodeShutdown: false, GracefulNodeShutdownBasedOnPodPriority: false, WindowsGracefulNodeShutdown: false}"))
	require.NoError(t, err)
	_, err = Convert(parse(t, "featureGates: {PodLevelResources: false, InPlacePodLevelResourcesVerticalScaling: false}"))
	require.NoError(t, err)
	_, err = Convert(parse(t, "featureGates: {GracefulNodeShutdownBasedOnPodPriority: false}\nshutdownGracePeriod: 30s"))
	require.NoError(t, err)
}

// breaksOthers reports whether the gate in its other state leaves one on that needs another that is off.
func breaksOthers(gate Gate) bool {
	on := map[string]bool{}
	for _, other := range Gates() {
		on[other.Name] = other.Default != (other.Name == gate.Name)
	}
	return slices.ContainsFunc(Gates(), func(other Gate) bool {
		return on[other.Name] && slices.ContainsFunc(other.Needs, func(name string) bool { return !on[name] })
	})
}

func TestGatesChangeWhatIsDone(t *testing.T) {
	chosen, err := Convert(parse(t, "featureGates: {DisableCPUQuotaWithExclusiveCPUs: false, PodLevelResources: false, "+
		"InPlacePodLevelResourcesVerticalScaling: false, KubeletPodResourcesListUseActivePods: false}"))
	require.NoError(t, err)
	require.True(t, chosen.Agent.Cgroups.ExclusiveCPUQuota)
	require.True(t, chosen.Agent.Pods.NoPodResources)
	require.True(t, chosen.Agent.Pods.ListEnded)
	chosen, err = Convert(parse(t, "featureGates: {DisableCPUQuotaWithExclusiveCPUs: true, PodLevelResources: true}"))
	require.NoError(t, err)
	require.False(t, chosen.Agent.Cgroups.ExclusiveCPUQuota)
	require.False(t, chosen.Agent.Pods.NoPodResources)
	require.False(t, chosen.Agent.Pods.ListEnded)
}

// doneRow matches a row of docs/features.md about a feature that is on by default, and that this kubelet has.
var doneRow = regexp.MustCompile("(?m)^\\| `(\\w+)` \\| \\w+ \\| on \\| done \\|")

// TestDocumentedFeaturesAreOn: the metric of the feature gates says of each feature what the documentation says.
func TestDocumentedFeaturesAreOn(t *testing.T) {
	text, err := os.ReadFile("../../docs/features.md")
	require.NoError(t, err)
	here := map[string]bool{}
	for _, gate := range Gates() {
		here[gate.Name] = gate.Here
	}
	rows := doneRow.FindAllSubmatch(text, -1)
	require.Greater(t, len(rows), 50)
	for _, row := range rows {
		require.True(t, here[string(row[1])], "%s is documented as done", row[1])
	}
}
