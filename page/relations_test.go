package page

import (
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/timeline"
)

// TestADeploymentListsThePodsOfAllItsReplicaSets has one in the middle of a rollout, and another Deployment beside it.
func TestADeploymentListsThePodsOfAllItsReplicaSets(t *testing.T) {
	owned := func(name, kind string, owner types.UID) metav1.ObjectMeta {
		yes := true
		return metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name),
			OwnerReferences: []metav1.OwnerReference{{Kind: kind, Name: string(owner), UID: owner, Controller: &yes}}}
	}
	client := fake.NewClientset(
		&appsv1.ReplicaSet{ObjectMeta: owned("web-1", explain.KindDeployment, "web")}, &corev1.Pod{ObjectMeta: owned("old", explain.KindReplicaSet, "web-1")},
		&appsv1.ReplicaSet{ObjectMeta: owned("web-2", explain.KindDeployment, "web")}, &corev1.Pod{ObjectMeta: owned("new", explain.KindReplicaSet, "web-2")},
		&appsv1.ReplicaSet{ObjectMeta: owned("db-1", explain.KindDeployment, "db")}, &corev1.Pod{ObjectMeta: owned("other", explain.KindReplicaSet, "db-1")},
	)
	h, err := newHub(t.Context(), Deps{Connect: func() (kubernetes.Interface, error) { return client, nil }, Clock: clock.RealClock{}}, Config{})
	require.NoError(t, err)
	defer h.close()
	var pods []string
	for _, chain := range h.relations(t.Context(), timeline.Ref{Kind: explain.KindDeployment, Namespace: "shop", Name: "web", UID: "web"}) {
		pods = append(pods, chain[1].Label)
	}
	require.Equal(t, []string{"pod shop/new", "pod shop/old"}, pods)
}
