package node_test

import (
	goruntime "runtime"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/kubelet/node"
)

// TestANodeOfOthersKeepsItsLabels has the Node created by others, who label it, too. What programs run on the machine is still the kubelet's to
// say, and that the controller attaches the node's volumes.
func TestANodeOfOthersKeepsItsLabels(t *testing.T) {
	run(t, func(f *fixture) {
		f.client = fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{
			corev1.LabelHostname: "rack-7", corev1.LabelTopologyZone: "a", corev1.LabelArchStable: "other",
		}}})
		f.labels = map[string]string{corev1.LabelTopologyZone: "b", corev1.LabelTopologyRegion: "r"}
		f.configure = func(_ *node.Deps, config *node.Config) { config.NoRegister = true }
	}, func(t *testing.T, f *fixture) {
		n := f.get(t)
		require.Equal(t, map[string]string{
			corev1.LabelHostname: "rack-7", corev1.LabelTopologyZone: "a",
			corev1.LabelArchStable: goruntime.GOARCH, corev1.LabelOSStable: goruntime.GOOS,
		}, n.Labels)
		require.Equal(t, "true", n.Annotations["volumes.kubernetes.io/controller-managed-attach-detach"])
		require.Equal(t, corev1.ConditionTrue, f.condition(t, corev1.NodeReady).Status)
	})
}
