package statusupdater_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	clienttesting "k8s.io/client-go/testing"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/attachdetach/cache"
	"github.com/berth-dev/berth/attachdetach/statusupdater"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

type fixture struct {
	client  *fake.Clientset
	actual  *cache.Actual
	lister  toolscache.Indexer
	updater *statusupdater.Updater
	patches []string
	fail    map[string]error
}

func newFixture(t *testing.T, nodes ...string) *fixture {
	actual, err := cache.NewActualStateOfWorld(cache.Deps{Plugins: operationexecutor.Plugins{}})
	require.NoError(t, err)
	s := &fixture{
		client: fake.NewClientset(), actual: actual,
		lister: toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, nil), fail: make(map[string]error),
	}
	for _, name := range nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		require.NoError(t, s.client.Tracker().Add(node))
		require.NoError(t, s.lister.Add(node))
	}
	s.client.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		require.Equal(t, "status", patch.GetSubresource())
		require.Equal(t, types.StrategicMergePatchType, patch.GetPatchType())
		s.patches = append(s.patches, patch.GetName()+" "+string(patch.GetPatch()))
		err := s.fail[patch.GetName()]
		return err != nil, nil, err
	})
	s.updater = statusupdater.NewNodeStatusUpdater(s.client, corelisters.NewNodeLister(s.lister), s.actual)
	return s
}

func (s *fixture) attach(t *testing.T, volume corev1.UniqueVolumeName, node types.NodeName) {
	_, err := s.actual.AddVolumeNode(volume, nil, node, "/dev/"+string(volume), true)
	require.NoError(t, err)
}

// B-19: only flagged nodes are written, in full and in the same order each time.
func TestWritesFlaggedNodesOnly(t *testing.T) {
	s := newFixture(t, "a", "b")
	s.attach(t, "w", "a")
	s.attach(t, "v", "a")
	s.attach(t, "u", "b")
	require.NoError(t, s.updater.UpdateNodeStatusForNode(context.Background(), "a"))
	require.Equal(t, []string{
		`a {"status":{"volumesAttached":[{"name":"v","devicePath":"/dev/v"},{"name":"w","devicePath":"/dev/w"}]}}`,
	}, s.patches)
	require.NoError(t, s.updater.UpdateNodeStatuses(context.Background()))
	require.NoError(t, s.updater.UpdateNodeStatuses(context.Background()))
	require.Len(t, s.patches, 2)
	node, err := s.client.CoreV1().Nodes().Get(context.Background(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	require.Len(t, node.Status.VolumesAttached, 2)

	// an empty list is written too.
	s.actual.MarkVolumeAsDetached("u", "b")
	require.NoError(t, s.updater.UpdateNodeStatuses(context.Background()))
	var patch struct{ Status corev1.NodeStatus }
	require.NoError(t, json.Unmarshal([]byte(s.patches[2][2:]), &patch))
	require.NotNil(t, patch.Status.VolumesAttached)
	require.Empty(t, patch.Status.VolumesAttached)
}

// a node that is gone is no failure; one that fails does not keep others back, and is flagged again.
func TestFailures(t *testing.T) {
	s := newFixture(t, "a", "b", "c")
	for _, node := range []types.NodeName{"a", "b", "c", "gone"} {
		s.attach(t, "v", node)
	}
	s.fail["a"] = errors.New("away")
	s.fail["b"] = apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, "b")
	err := s.updater.UpdateNodeStatuses(context.Background())
	require.ErrorContains(t, err, "unable to update 1 nodes")
	require.ErrorContains(t, err, `node "a"`)
	require.Len(t, s.patches, 3, "c must have been written, and no request sent for the node that was deleted")
	require.Equal(t, []types.NodeName{"a"}, s.actual.GetNodesToUpdateStatusFor())
	delete(s.fail, "a")
	require.NoError(t, s.updater.UpdateNodeStatusForNode(context.Background(), "a"))
	require.Empty(t, s.actual.GetNodesToUpdateStatusFor())
}
