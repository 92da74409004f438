package agent

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/component-helpers/nodedeclaredfeatures/features"
)

// TestDeclaredFeatures compares the declared features with those that Kubernetes knows: each of the others is one that the
// kubelet does not have.
func TestDeclaredFeatures(t *testing.T) {
	declared := declaredFeatures()
	_, err := nodedeclaredfeatures.DefaultFramework.MapSorted(declared)
	require.NoError(t, err, "all are known, and sorted")
	var missing []string
	for _, feature := range features.AllFeatures {
		if !slices.Contains(declared, feature.Name()) {
			missing = append(missing, feature.Name())
		}
	}
	require.ElementsMatch(t, []string{"UserNamespacesHostNetworkSupport"}, missing,
		"does the kubelet have the new one?")
}
