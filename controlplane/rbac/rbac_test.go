package rbac_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/controlplane/rbac"
)

// writes returns the verbs and resources of the requests that changed something.
func writes(client *fake.Clientset) []string {
	var all []string
	for _, action := range client.Actions() {
		if !slices.Contains([]string{"get", "list", "watch"}, action.GetVerb()) {
			all = append(all, action.GetVerb()+" "+action.GetResource().Resource)
		}
	}
	return all
}

func TestEnsureTwiceWritesOnce(t *testing.T) {
	client := fake.NewClientset()
	require.NoError(t, rbac.Ensure(t.Context(), client))
	require.Len(t, writes(client), 4*4+4*2+3+3+2+2,
		"a role, a lease role and their bindings for each controller, a role and its binding for DNS, the approver, load balancers and the timeline, two "+
			"bindings and a role for kubelets, three bindings for joining, a role with its binding for nodes, and two roles for metrics")
	client.ClearActions()
	require.NoError(t, rbac.Ensure(t.Context(), client))
	require.Empty(t, writes(client))
}

func TestEnsureRevertsChanges(t *testing.T) {
	client := fake.NewClientset()
	require.NoError(t, rbac.Ensure(t.Context(), client))
	roles := client.RbacV1().ClusterRoles()
	role, err := roles.Get(t.Context(), rbac.ReplicaSetUser, metav1.GetOptions{})
	require.NoError(t, err)
	want := role.DeepCopy()
	everything := []string{"*"}
	role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: everything, Resources: everything, Verbs: everything})
	_, err = roles.Update(t.Context(), role, metav1.UpdateOptions{})
	require.NoError(t, err)

	bindings := client.RbacV1().ClusterRoleBindings()
	binding, err := bindings.Get(t.Context(), rbac.ReplicaSetUser, metav1.GetOptions{})
	require.NoError(t, err)
	binding.Subjects = nil
	_, err = bindings.Update(t.Context(), binding, metav1.UpdateOptions{})
	require.NoError(t, err)

	client.ClearActions()
	require.NoError(t, rbac.Ensure(t.Context(), client))
	require.Equal(t, []string{"update clusterroles", "update clusterrolebindings"}, writes(client))
	role, err = roles.Get(t.Context(), rbac.ReplicaSetUser, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, want.Rules, role.Rules)
}

// allowed reports whether rules allow verb on resource of group.
func allowed(rules []rbacv1.PolicyRule, verb, group, resource string) bool {
	return slices.ContainsFunc(rules, func(rule rbacv1.PolicyRule) bool {
		return slices.Contains(rule.Verbs, verb) && slices.Contains(rule.APIGroups, group) &&
			slices.Contains(rule.Resources, resource)
	})
}

func TestComponentsHaveTheLeastPermissions(t *testing.T) {
	client := fake.NewClientset()
	require.NoError(t, rbac.Ensure(t.Context(), client))
	tests := []struct {
		user, verb, group, resource string
		want                        bool
	}{
		{rbac.ProvisionUser, "create", "", "persistentvolumes", true},
		{rbac.ProvisionUser, "update", "", "persistentvolumeclaims", true},
		{rbac.ProvisionUser, "delete", "", "persistentvolumeclaims", false},
		{rbac.ProvisionUser, "list", "storage.k8s.io", "volumeattachments", true},
		{rbac.ProvisionUser, "update", "", "nodes", false},
		{rbac.ProvisionUser, "get", "", "secrets", true},
		{rbac.ProvisionUser, "list", "", "secrets", false},
		{rbac.ProvisionUser, "watch", "", "secrets", false},
		{rbac.ProvisionUser, "get", "snapshot.storage.k8s.io", "volumesnapshotcontents", true},
		{rbac.ProvisionUser, "get", "storage.k8s.io", "volumeattributesclasses", true},
		{rbac.ProvisionUser, "create", "storage.k8s.io", "csistoragecapacities", false},
		{rbac.AttachDetachUser, "patch", "", "nodes/status", true},
		{rbac.AttachDetachUser, "create", "storage.k8s.io", "volumeattachments", true},
		{rbac.AttachDetachUser, "delete", "", "persistentvolumes", false},
		{rbac.AttachDetachUser, "patch", "storage.k8s.io", "volumeattachments/status", false},
		{rbac.AttacherUser, "patch", "storage.k8s.io", "volumeattachments/status", true},
		{rbac.AttacherUser, "create", "storage.k8s.io", "volumeattachments", false},
		{rbac.AttacherUser, "patch", "", "persistentvolumes", true},
		{rbac.AttacherUser, "delete", "", "persistentvolumes", false},
		{rbac.AttacherUser, "get", "", "secrets", true},
		{rbac.AttacherUser, "list", "", "secrets", false},
		{rbac.AttacherUser, "watch", "", "secrets", false},
		{rbac.ReplicaSetUser, "create", "", "pods", true},
		{rbac.ReplicaSetUser, "update", "apps", "replicasets/status", true},
		{rbac.ReplicaSetUser, "delete", "apps", "replicasets", false},
		{rbac.ApproverUser, "update", "certificates.k8s.io", "certificatesigningrequests/approval", true},
		{rbac.ApproverUser, "create", "certificates.k8s.io", "certificatesigningrequests", false},
		{rbac.ApproverUser, "sign", "certificates.k8s.io", "signers", false},
		{rbac.ApproverUser, "update", "", "nodes", false},
		{rbac.LoadBalancerUser, "patch", "", "services/status", true},
		{rbac.LoadBalancerUser, "create", "", "services", false},
		{rbac.LoadBalancerUser, "delete", "", "services", false},
		{rbac.LoadBalancerUser, "list", "", "secrets", false},
		{rbac.KubeletProxyRole, "create", "", "nodes/checkpoint", true},
		{rbac.KubeletProxyRole, "create", "", "nodes/proxy", false},
	}
	for _, tt := range tests {
		role, err := client.RbacV1().ClusterRoles().Get(t.Context(), tt.user, metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, tt.want, allowed(role.Rules, tt.verb, tt.group, tt.resource),
			"%s: %s %s/%s", tt.user, tt.verb, tt.group, tt.resource)
	}
	for _, user := range []string{rbac.ProvisionUser, rbac.AttachDetachUser, rbac.AttacherUser, rbac.ReplicaSetUser} {
		role, err := client.RbacV1().ClusterRoles().Get(t.Context(), user, metav1.GetOptions{})
		require.NoError(t, err)
		for _, rule := range role.Rules {
			require.NotContains(t, append(append(rule.Verbs, rule.Resources...), rule.APIGroups...), "*", user)
			if user != rbac.AttacherUser && user != rbac.ProvisionUser { // volumes and storage classes name their Secrets
				require.NotContains(t, rule.Resources, "secrets", user)
			}
		}
		require.False(t, allowed(role.Rules, "update", "coordination.k8s.io", "leases"), "leases only in kube-system")
		leases, err := client.RbacV1().Roles("kube-system").Get(t.Context(), user, metav1.GetOptions{})
		require.NoError(t, err)
		require.True(t, allowed(leases.Rules, "update", "coordination.k8s.io", "leases"))
		require.Equal(t, user == rbac.ProvisionUser,
			allowed(leases.Rules, "create", "storage.k8s.io", "csistoragecapacities"), "one component publishes capacity")
	}
}

func TestRefusalNamesTheObject(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("create", "rolebindings", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("no space")
	})
	err := rbac.Ensure(t.Context(), client)
	require.ErrorContains(t, err, `role binding "berth:provision"`)
	require.ErrorContains(t, err, "no space")
}

func TestJoiningNeedsNoMoreThanCertificates(t *testing.T) {
	client := fake.NewClientset()
	require.NoError(t, rbac.Ensure(t.Context(), client))
	bindings, err := client.RbacV1().ClusterRoleBindings().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	granted := map[string][]string{}
	for _, binding := range bindings.Items {
		for _, subject := range binding.Subjects {
			if subject.Kind == rbacv1.GroupKind {
				granted[subject.Name] = append(granted[subject.Name], binding.RoleRef.Name)
			}
		}
	}
	const requests = "system:certificates.k8s.io:certificatesigningrequests:"
	require.Len(t, granted, 2)
	require.ElementsMatch(t, []string{"system:node-bootstrapper", requests + "nodeclient"}, granted[rbac.JoinersGroup])
	require.Equal(t, []string{requests + "selfnodeclient"}, granted["system:nodes"])
	role, err := client.RbacV1().Roles("kube-system").Get(t.Context(), rbac.ClusterInfoRole, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, []rbacv1.PolicyRule{{
		APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"berth-cluster"}, Verbs: []string{"get"},
	}}, role.Rules)
	approver, err := client.RbacV1().ClusterRoles().Get(t.Context(), rbac.ApproverUser, metav1.GetOptions{})
	require.NoError(t, err)
	for _, rule := range approver.Rules {
		if slices.Contains(rule.Resources, "signers") {
			require.Equal(t, []string{"kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client"}, rule.ResourceNames)
		}
	}
}
