package admission

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/nodedeclaredfeatures"

	"github.com/berth-dev/berth/kubelet/status"
	"github.com/berth-dev/berth/version"
)

// Reasons of Pods that need what the node or its container runtime does not have, by the names of Kubernetes.
const (
	reasonFeature      = "PodFeatureUnsupported"
	reasonGroupsPolicy = "SupplementalGroupsPolicyNotSupported"
)

// features knows which of the features that Pods may need the node declares.
type features struct {
	framework *nodedeclaredfeatures.Framework
	declared  nodedeclaredfeatures.FeatureSet
	version   *apiversion.Version
}

func newFeatures(config *Config) (*features, error) {
	parsed, err := apiversion.ParseGeneric(cmp.Or(config.Version, version.Kubernetes))
	if err != nil {
		return nil, fmt.Errorf("admission: Config.Version %q: %w", config.Version, err)
	}
	framework := nodedeclaredfeatures.DefaultFramework
	return &features{framework: framework, declared: framework.TryMap(config.DeclaredFeatures), version: parsed}, nil
}

// check rejects a Pod that needs a feature that the node does not declare.
func (f *features) check(pod *corev1.Pod) *status.Failure {
	needed, err := f.framework.InferForPodScheduling(
		&nodedeclaredfeatures.PodInfo{Spec: &pod.Spec, Status: &pod.Status}, f.version)
	if err != nil {
		return reject(reasonFeature, "Failed to find the features that the Pod needs: %v", err)
	}
	match, err := f.framework.MatchNodeFeatureSet(needed, f.declared)
	if err != nil {
		return reject(reasonFeature, "Failed to compare the features that the Pod needs with those of the node: %v", err)
	}
	if match.IsMatch {
		return nil
	}
	return reject(reasonFeature, "Pod requires node features that are not available: %s",
		strings.Join(match.UnsatisfiedRequirements, ", "))
}

// checkGroupsPolicy rejects a Pod whose groups have to be exactly those of its spec, where the container runtime adds those
// of the image. While the runtime has not reported what it can do, that is checked when the sandbox is created.
func (a *Admitter) checkGroupsPolicy(pod *corev1.Pod) *status.Failure {
	if err := a.deps.GroupsPolicy(pod); err != nil {
		return reject(reasonGroupsPolicy, "%v", err)
	}
	return nil
}
