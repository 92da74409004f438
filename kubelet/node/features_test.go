package node_test

import (
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/kubelet/node"
)

func TestFeaturesAreDeclared(t *testing.T) {
	features := []string{"First", "Second"}
	run(t, func(f *fixture) { f.features = features }, func(t *testing.T, f *fixture) {
		require.Equal(t, features, f.get(t).Status.DeclaredFeatures)
		require.Equal(t, 1, f.writes())

		// Another program removes them.
		n := f.get(t).DeepCopy()
		n.Status.DeclaredFeatures = nil
		_, err := f.client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{})
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, features, f.get(t).Status.DeclaredFeatures)
	})
	_, err := node.New(node.Deps{}, node.Config{DeclaredFeatures: []string{"Second", "First"}, Name: "n", IPs: []net.IP{net.IPv4(10, 0, 0, 1)}})
	require.ErrorContains(t, err, "sorted")
}

// TestAPIServerWithoutDeclaredFeatures has an API server that does not store declared features, and later one that does: the
// Node is not written more often for that, and has its features with the next periodic write.
func TestAPIServerWithoutDeclaredFeatures(t *testing.T) {
	var storing atomic.Bool
	prepare := func(f *fixture) {
		f.features = []string{"First"}
		f.client.PrependReactor("create", "nodes", func(action k8stesting.Action) (bool, runtime.Object, error) {
			action.(k8stesting.CreateAction).GetObject().(*corev1.Node).Status.DeclaredFeatures = nil
			return false, nil, nil
		})
		f.client.PrependReactor("patch", "nodes", func(action k8stesting.Action) (bool, runtime.Object, error) {
			handled, patched, err := k8stesting.ObjectReaction(f.client.Tracker())(action)
			if storing.Load() || err != nil {
				return handled, patched, err
			}
			stored := patched.(*corev1.Node).DeepCopy()
			stored.Status.DeclaredFeatures = nil
			return true, stored, f.client.Tracker().Update(action.GetResource(), stored, "")
		})
	}
	run(t, prepare, func(t *testing.T, f *fixture) {
		time.Sleep(4 * time.Minute)
		require.Equal(t, 1, f.writes())
		time.Sleep(5 * time.Minute)
		require.Equal(t, 2, f.writes(), "the periodic write")
		for _, event := range f.events() {
			require.NotContains(t, event, "NodeStatusContested")
		}
		storing.Store(true)
		time.Sleep(5 * time.Minute)
		require.Equal(t, []string{"First"}, f.get(t).Status.DeclaredFeatures)
		require.Equal(t, 3, f.writes())
	})
}
