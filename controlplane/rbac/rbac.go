// Package rbac grants the components of Berth the permissions that they need, and no more.
package rbac

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

// store is the part of a typed client that ensure uses.
type store[T any] interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
	Create(ctx context.Context, object T, opts metav1.CreateOptions) (T, error)
	Update(ctx context.Context, object T, opts metav1.UpdateOptions) (T, error)
}

// Ensure creates the roles and bindings that are missing and corrects those that
// differ. It may run at every start: correct objects are only read.
func Ensure(ctx context.Context, client kubernetes.Interface) error {
	api := client.RbacV1()
	for _, part := range components() {
		role := &rbacv1.ClusterRole{ObjectMeta: meta(part.name, ""), Rules: part.rules}
		if err := ensure(ctx, api.ClusterRoles(), role, changeClusterRole); err != nil {
			return fmt.Errorf("ensure cluster role %q: %w", part.name, err)
		}
		if err := ensureClusterBinding(ctx, client, part.name, part.name, part.name); err != nil {
			return err
		}
		rules := systemRules(part.name)
		if len(rules) == 0 {
			continue
		}
		system := &rbacv1.Role{ObjectMeta: meta(part.name, metav1.NamespaceSystem), Rules: rules}
		if err := ensure(ctx, api.Roles(metav1.NamespaceSystem), system, changeRole); err != nil {
			return fmt.Errorf("ensure role %q: %w", part.name, err)
		}
		binding := &rbacv1.RoleBinding{
			ObjectMeta: meta(part.name, metav1.NamespaceSystem),
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: part.name},
			Subjects:   user(part.name),
		}
		if err := ensure(ctx, api.RoleBindings(metav1.NamespaceSystem), binding, changeRoleBinding); err != nil {
			return fmt.Errorf("ensure role binding %q: %w", part.name, err)
		}
	}
	if err := ensureJoining(ctx, client); err != nil {
		return err
	}
	const kubeletAdmin = "system:kubelet-api-admin" // upstream's role for logs, exec and proxy
	if err := ensureClusterBinding(ctx, client, "berth:apiserver-kubelet-client", kubeletAdmin, KubeletClientUser); err != nil {
		return err
	}
	// That role omits two of the paths that a node serves. They allow less than the node's proxy does, which it includes.
	role := &rbacv1.ClusterRole{ObjectMeta: meta(KubeletProxyRole, ""), Rules: []rbacv1.PolicyRule{
		rule("", []string{"create"}, "nodes/checkpoint"), rule("", []string{"get"}, "nodes/statusz"),
	}}
	if err := ensure(ctx, api.ClusterRoles(), role, changeClusterRole); err != nil {
		return fmt.Errorf("ensure cluster role %q: %w", role.Name, err)
	}
	if err := ensureClusterBinding(ctx, client, KubeletProxyRole, KubeletProxyRole, KubeletClientUser); err != nil {
		return err
	}
	for _, reader := range []*rbacv1.ClusterRole{usageReader(), metricsReader()} {
		if err := ensure(ctx, api.ClusterRoles(), reader, changeClusterRole); err != nil {
			return fmt.Errorf("ensure cluster role %q: %w", reader.Name, err)
		}
	}
	return nil
}

// metricsReader is the role of a Prometheus: all metrics at once. No one has it until an administrator binds it.
func metricsReader() *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: meta(MetricsReaderRole, ""), Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"get"}, NonResourceURLs: []string{metricsPath}},
	}}
}

// usageReader extends the roles view, edit and admin by metrics.k8s.io: who may read Pods may read their usage. Its name is
// that of the role that metrics-server brings.
func usageReader() *rbacv1.ClusterRole {
	role := &rbacv1.ClusterRole{ObjectMeta: meta("system:aggregated-metrics-reader", ""), Rules: []rbacv1.PolicyRule{
		rule("metrics.k8s.io", []string{"get", "list"}, "nodes", "pods"),
	}}
	labels := map[string]string{}
	for _, aggregate := range []string{"view", "edit", "admin"} {
		labels["rbac.authorization.k8s.io/aggregate-to-"+aggregate] = "true"
	}
	role.Labels = labels
	return role
}

// ensureJoining grants what machines with a token of JoinersGroup need to join.
func ensureJoining(ctx context.Context, client kubernetes.Interface) error {
	for _, binding := range joinBindings {
		if err := ensureClusterBindingOf(ctx, client, binding.name, binding.role, group(binding.group)); err != nil {
			return err
		}
	}
	info := &rbacv1.Role{ObjectMeta: meta(ClusterInfoRole, metav1.NamespaceSystem), Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{""}, Verbs: []string{"get"}, Resources: []string{"configmaps"}, ResourceNames: []string{clusterInfoName},
	}}}
	if err := ensure(ctx, client.RbacV1().Roles(metav1.NamespaceSystem), info, changeRole); err != nil {
		return fmt.Errorf("ensure role %q: %w", info.Name, err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: meta(ClusterInfoRole, metav1.NamespaceSystem),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: ClusterInfoRole}, Subjects: group(nodesGroup),
	}
	if err := ensure(ctx, client.RbacV1().RoleBindings(metav1.NamespaceSystem), binding, changeRoleBinding); err != nil {
		return fmt.Errorf("ensure role binding %q: %w", binding.Name, err)
	}
	return nil
}

func ensureClusterBinding(ctx context.Context, client kubernetes.Interface, name, role, subject string) error {
	return ensureClusterBindingOf(ctx, client, name, role, user(subject))
}

func ensureClusterBindingOf(ctx context.Context, client kubernetes.Interface, name, role string, subjects []rbacv1.Subject) error {
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta(name, ""),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   subjects,
	}
	if err := ensure(ctx, client.RbacV1().ClusterRoleBindings(), binding, changeClusterRoleBinding); err != nil {
		return fmt.Errorf("ensure cluster role binding %q: %w", name, err)
	}
	return nil
}

// ensure creates the object or corrects its content; change copies the content of
// want into have and reports whether that changed it. If others write it at the same time, it is read again.
func ensure[T metav1.Object](ctx context.Context, objects store[T], want T, change func(have, want T) bool) error {
	again := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	return retry.OnError(retry.DefaultRetry, again, func() error {
		have, err := objects.Get(ctx, want.GetName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = objects.Create(ctx, want, metav1.CreateOptions{})
			return err
		}
		if err != nil || !change(have, want) {
			return err
		}
		_, err = objects.Update(ctx, have, metav1.UpdateOptions{})
		return err
	})
}

func changeClusterRole(have, want *rbacv1.ClusterRole) bool {
	differs := !equality.Semantic.DeepEqual(have.Rules, want.Rules)
	have.Rules = want.Rules
	return differs
}

func changeRole(have, want *rbacv1.Role) bool {
	differs := !equality.Semantic.DeepEqual(have.Rules, want.Rules)
	have.Rules = want.Rules
	return differs
}

func changeClusterRoleBinding(have, want *rbacv1.ClusterRoleBinding) bool {
	differs := !equality.Semantic.DeepEqual(have.Subjects, want.Subjects)
	have.Subjects = want.Subjects
	return differs
}

func changeRoleBinding(have, want *rbacv1.RoleBinding) bool {
	differs := !equality.Semantic.DeepEqual(have.Subjects, want.Subjects)
	have.Subjects = want.Subjects
	return differs
}

func meta(name, namespace string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name, Namespace: namespace, Labels: map[string]string{"app.kubernetes.io/part-of": "berth"},
	}
}

func user(name string) []rbacv1.Subject {
	return []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}}
}

func group(name string) []rbacv1.Subject {
	return []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: name}}
}
