package settings

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berth-dev/berth/kubelet/metrics"
)

// previousMinor is the minor version before the one whose kubelet this is.
const previousMinor = "1.35"

// The gates that stand for all features of a stage.
const (
	allAlpha = "AllAlpha"
	allBeta  = "AllBeta"
)

// The stages of features that are not generally available.
const stageAlpha, stageBeta = "ALPHA", "BETA"

// gateTable is what upstream's kubelet says of its gates, written by conformance/cmd/kubeletfacts.
//
//go:embed gates.txt
var gateTable string

// differentHere returns the state of those gates of the kubelet that this kubelet has in another state than upstream has by default;
// docs/features.md has all. Either state may be set: the default one, and the one that it has here.
func differentHere() map[string]bool {
	here := map[string]bool{"WindowsGracefulNodeShutdown": false}
	for _, name := range []string{
		gateProjectQuotas, "ClusterTrustBundleProjection", "ContainerStopSignals", "EventedPLEG", "PodCertificateRequest", "PodLogsQuerySplitStreams",
	} {
		here[name] = true
	}
	return here
}

// gateMemoryQoS reserves and throttles memory.
const gateMemoryQoS = "MemoryQoS"

// gateProjectQuotas measures emptyDirs by project quotas.
const gateProjectQuotas = "LocalStorageCapacityIsolationFSQuotaMonitoring"

// gateRuntimeMetrics serves the container runtime's metrics of containers in place of what the kernel counts.
const gateRuntimeMetrics = "PodAndContainerStatsFromCRI"

// Gates that are on by default, and without which the kubelet does less.
const (
	// gateQuotaPeriod allows another period of CPU quotas than the default one.
	gateQuotaPeriod = "CustomCPUCFSQuotaPeriod"
	// gateNoExclusiveQuota sets no quota for CPUs that a container has for itself.
	gateNoExclusiveQuota = "DisableCPUQuotaWithExclusiveCPUs"
	// gatePodResources applies the resources of Pods as a whole, and gatePodResize their changes.
	gatePodResources, gatePodResize = "PodLevelResources", "InPlacePodLevelResourcesVerticalScaling"
	// gateShutdown and gateShutdownPriorities allow to set how long a shutdown of the machine gives Pods.
	gateShutdown, gateShutdownPriorities = "GracefulNodeShutdown", "GracefulNodeShutdownBasedOnPodPriority"
	// gateListActive has the podresources API list the Pods only that have not ended.
	gateListActive = "KubeletPodResourcesListUseActivePods"
	// gateBetaCPUOptions allows options of the CPU manager that are in beta.
	gateBetaCPUOptions = "CPUManagerPolicyBetaOptions"
	// gateServingRotation allows to request the serving certificate from the cluster.
	gateServingRotation = "RotateKubeletServerCertificate"
)

// switched returns the gates that this kubelet can have in either state. Those that allow alpha options of managers are among them,
// because each such option is refused by itself.
func switched() []string {
	return []string{
		gateMemoryQoS, gateProjectQuotas, gateQuotaPeriod, gateNoExclusiveQuota, gatePodResources, gateShutdown, gateShutdownPriorities,
		gateListActive, gateBetaCPUOptions, gateServingRotation, gateRuntimeMetrics, "CPUManagerPolicyAlphaOptions", "TopologyManagerPolicyAlphaOptions", "TopologyManagerPolicyBetaOptions",
	}
}

// isOff reports whether a gate that is on by default is off.
func isOff(c *Configuration, gate string) bool {
	on, set := c.FeatureGates[gate]
	return set && !on
}

// Gate is a feature gate of Kubernetes.
type Gate struct {
	// Name is its name in featureGates, Stage is ALPHA, BETA, DEPRECATED, or empty for one that is generally available.
	Name, Stage string
	// Default is its state in upstream's kubelet. Locked says that upstream refuses another one.
	Default, Locked bool
	// Kubelet says that the kubelet reads it; the others are of other components.
	Kubelet bool
	// Here is the state in this kubelet.
	Here bool
	// Needs are the gates without which it cannot be on.
	Needs []string
}

// Gates returns the feature gates that upstream's kubelet knows, sorted by name. The kubelet has each feature that is generally
// available; of the others Here says it.
func Gates() []Gate {
	var gates []Gate
	for line := range strings.Lines(gateTable) {
		words := strings.Fields(line)
		gate := Gate{Name: words[0]}
		for _, word := range words[1:] {
			switch word {
			case "on":
				gate.Default = true
			case "locked":
				gate.Locked = true
			case "kubelet":
				gate.Kubelet = true
			case stageAlpha, stageBeta, "DEPRECATED":
				gate.Stage = word
			}
			if others, ok := strings.CutPrefix(word, "needs="); ok {
				gate.Needs = strings.Split(others, ",")
			}
		}
		gate.Here = gate.Default
		if here, differs := differentHere()[gate.Name]; differs {
			gate.Here = here
		}
		gates = append(gates, gate)
	}
	return gates
}

// Features returns the state of each feature gate with those that a configuration sets; nil for one that sets none.
func Features(set map[string]bool) []metrics.Feature {
	var features []metrics.Feature
	for _, gate := range Gates() {
		features = append(features, metrics.Feature{Name: gate.Name, Stage: gate.Stage, Enabled: gate.state(set, gate.Here)})
	}
	return features
}

// state returns the state of a gate: what is set for it, or for all gates of its stage, or else the one given.
func (g *Gate) state(set map[string]bool, otherwise bool) bool {
	names := []string{g.Name}
	switch g.Stage {
	case stageAlpha:
		names = append(names, allAlpha)
	case stageBeta:
		names = append(names, allBeta)
	}
	for _, name := range names {
		if on, ok := set[name]; ok {
			return on
		}
	}
	return otherwise
}

// validateGates returns an error that names the gates which Kubernetes does not know or has locked, and those that are on without others
// that they need.
func validateGates(set map[string]bool) error {
	known := map[string]Gate{}
	for _, gate := range Gates() {
		known[gate.Name] = gate
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(set)) {
		gate, ok := known[name]
		switch {
		case name == allAlpha || name == allBeta:
		case !ok:
			errs = append(errs, fmt.Errorf("featureGates (--feature-gates) %s: Kubernetes 1.36 has no such feature gate", name))
		case gate.Locked && set[name] != gate.Default:
			errs = append(errs, fmt.Errorf("featureGates (--feature-gates) %s=%v: Kubernetes has locked it to %v", name, set[name], gate.Default))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		gate := known[name]
		if !gate.state(set, gate.Default) {
			continue
		}
		for _, other := range gate.Needs {
			if needed := known[other]; !needed.state(set, needed.Default) {
				errs = append(errs, fmt.Errorf("featureGates (--feature-gates): %s is on and needs %s, which is off: switch both", name, other))
			}
		}
	}
	return errors.Join(errs...)
}

// refusedGates returns the names of the kubelet's gates that are set to what this kubelet does not do.
func refusedGates(set map[string]bool) []string {
	var refused []string
	either := switched()
	if applied, ok := set[gatePodResources]; ok && !applied {
		either = append(either, gatePodResize) // what is not applied needs not be resized
	}
	for _, gate := range Gates() {
		if state, ok := set[gate.Name]; ok && gate.Kubelet && state != gate.Default && state != gate.Here && !slices.Contains(either, gate.Name) {
			refused = append(refused, gate.Name)
		}
	}
	if set[allAlpha] {
		refused = append(refused, allAlpha)
	}
	if state, ok := set[allBeta]; ok && !state {
		refused = append(refused, allBeta)
	}
	return refused
}
