package listedrbac

import (
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestFirstRequestsAreAnsweredFromLists counts the requests that reach the API server.
func TestFirstRequestsAreAnsweredFromLists(t *testing.T) {
	global, own := metav1.ObjectMeta{Name: "a"}, metav1.ObjectMeta{Namespace: "kube-system", Name: "a"}
	server := fake.NewClientset(&rbacv1.ClusterRole{ObjectMeta: global}, &rbacv1.ClusterRoleBinding{ObjectMeta: global},
		&rbacv1.Role{ObjectMeta: own}, &rbacv1.RoleBinding{ObjectMeta: own})
	client, err := New(t.Context(), server)
	require.NoError(t, err)
	require.Len(t, server.Actions(), 4)
	gets := map[string]func(name string) (string, error){
		"clusterroles": func(name string) (string, error) {
			o, err := client.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
			return nameOf(o, err), err
		},
		"clusterrolebindings": func(name string) (string, error) {
			o, err := client.RbacV1().ClusterRoleBindings().Get(t.Context(), name, metav1.GetOptions{})
			return nameOf(o, err), err
		},
		"roles": func(name string) (string, error) {
			o, err := client.RbacV1().Roles("kube-system").Get(t.Context(), name, metav1.GetOptions{})
			return nameOf(o, err), err
		},
		"rolebindings": func(name string) (string, error) {
			o, err := client.RbacV1().RoleBindings("kube-system").Get(t.Context(), name, metav1.GetOptions{})
			return nameOf(o, err), err
		},
	}
	for resource, get := range gets {
		server.ClearActions()
		name, err := get("a")
		require.NoError(t, err)
		require.Equal(t, "a", name)
		_, err = get("missing")
		require.True(t, apierrors.IsNotFound(err), "%s: %v", resource, err)
		require.Empty(t, server.Actions(), resource)
		name, err = get("a")
		require.NoError(t, err)
		require.Equal(t, "a", name)
		require.Len(t, server.Actions(), 1, "%s: the second time from the API server, which may have changed it", resource)
		require.Equal(t, resource, server.Actions()[0].GetResource().Resource)
	}
	_, err = client.RbacV1().Roles("other").Get(t.Context(), "a", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "of another namespace")
}

func nameOf(o metav1.Object, err error) string {
	if err != nil {
		return ""
	}
	return o.GetName()
}
