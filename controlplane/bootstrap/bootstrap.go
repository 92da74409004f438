// Package bootstrap creates the objects that Kubernetes itself relies on in a new
// API server: the default RBAC policy and the system priority classes.
//
// kube-apiserver has two post-start hooks for that, and both first wait a second,
// at every start, even if there is nothing to do. Hook does the same work from the
// same data without the wait; the API server starts with upstream's two disabled.
package bootstrap

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	"k8s.io/klog/v2"
	schedulingv1 "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	schedulingrest "k8s.io/kubernetes/pkg/registry/scheduling/rest"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/berth-dev/berth/controlplane/contain"
	"github.com/berth-dev/berth/controlplane/listedrbac"
)

const (
	// HookName is the hook's name; the check in /readyz is poststarthook/HookName.
	HookName = "berth/bootstrap"
	// retryPeriod and retryTimeout are those of Retry. A server without its roles must not run.
	retryPeriod  = 50 * time.Millisecond
	retryTimeout = 30 * time.Second
	// workers is how many objects are handled at a time: enough for etcd to complete
	// several writes with one fsync.
	workers = 16
)

// Replaced returns the names of upstream's hooks that Hook replaces.
func Replaced() []string {
	return []string{rbacrest.PostStartHookName, schedulingrest.PostStartHookName}
}

// Hook returns when all objects exist and are correct. /readyz waits for it.
func Hook(hook genericapiserver.PostStartHookContext) error {
	config := rest.CopyConfig(hook.LoopbackClientConfig)
	config.QPS = -1 // no limit: some two hundred requests follow in a new cluster
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create client for bootstrap: %w", err)
	}
	err = Retry(hook.Context, func(ctx context.Context) error {
		listed, err := listedrbac.New(ctx, client)
		if err != nil {
			return err
		}
		return Ensure(ctx, listed)
	})
	if err != nil {
		return fmt.Errorf("create the objects that Kubernetes relies on: %w", err)
	}
	return nil
}

// Retry calls write until it succeeds, for hooks of the API server: the first requests may be sent before it has all its storage. Its
// error has that of the last call, too.
func Retry(ctx context.Context, write func(ctx context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, retryPeriod, retryTimeout, true, func(ctx context.Context) (bool, error) {
		if last = write(ctx); last != nil {
			klog.V(2).InfoS("Failed to write objects of the start; retrying", "error", last)
		}
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", err, last)
	}
	return nil
}

// Ensure creates what is missing and adds rules and subjects that are missing,
// as upstream does: what an administrator added stays, and so does an object
// annotated rbac.authorization.kubernetes.io/autoupdate=false.
func Ensure(ctx context.Context, client kubernetes.Interface) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	for _, class := range schedulingv1.SystemPriorityClasses() {
		group.Go(contain.Func("bootstrap.priorityClass", func() error {
			classes := client.SchedulingV1().PriorityClasses()
			_, err := classes.Get(ctx, class.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				_, err = classes.Create(ctx, class, metav1.CreateOptions{})
			}
			if err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("ensure priority class %q: %w", class.Name, err)
			}
			return nil
		}))
	}
	for _, role := range append(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()...) {
		group.Go(contain.Func("bootstrap.clusterRole", func() error { return ensureClusterRole(client, role) }))
	}
	for _, binding := range append(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()...) {
		group.Go(contain.Func("bootstrap.clusterRoleBinding", func() error { return ensureClusterRoleBinding(client, binding) }))
	}
	for _, roles := range bootstrappolicy.NamespaceRoles() {
		for _, role := range roles {
			group.Go(contain.Func("bootstrap.role", func() error { return ensureRole(client, role) }))
		}
	}
	for _, bindings := range bootstrappolicy.NamespaceRoleBindings() {
		for _, binding := range bindings {
			group.Go(contain.Func("bootstrap.roleBinding", func() error { return ensureRoleBinding(client, binding) }))
		}
	}
	return group.Wait()
}

func ensureClusterRole(client kubernetes.Interface, role rbacv1.ClusterRole) error {
	return ensureRules("cluster role", role.Name, reconciliation.ReconcileRoleOptions{
		Role:    reconciliation.ClusterRoleRuleOwner{ClusterRole: &role},
		Client:  reconciliation.ClusterRoleModifier{Client: client.RbacV1().ClusterRoles()},
		Confirm: true,
	})
}

func ensureRole(client kubernetes.Interface, role rbacv1.Role) error {
	return ensureRules("role", role.Namespace+"/"+role.Name, reconciliation.ReconcileRoleOptions{
		Role:    reconciliation.RoleRuleOwner{Role: &role},
		Client:  reconciliation.RoleModifier{Client: client.RbacV1(), NamespaceClient: client.CoreV1().Namespaces()},
		Confirm: true,
	})
}

func ensureClusterRoleBinding(client kubernetes.Interface, binding rbacv1.ClusterRoleBinding) error {
	return ensureSubjects("cluster role binding", binding.Name, reconciliation.ReconcileRoleBindingOptions{
		RoleBinding: reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &binding},
		Client:      reconciliation.ClusterRoleBindingClientAdapter{Client: client.RbacV1().ClusterRoleBindings()},
		Confirm:     true,
	})
}

func ensureRoleBinding(client kubernetes.Interface, binding rbacv1.RoleBinding) error {
	return ensureSubjects("role binding", binding.Namespace+"/"+binding.Name, reconciliation.ReconcileRoleBindingOptions{
		RoleBinding: reconciliation.RoleBindingAdapter{RoleBinding: &binding},
		Client: reconciliation.RoleBindingClientAdapter{
			Client: client.RbacV1(), NamespaceClient: client.CoreV1().Namespaces(),
		},
		Confirm: true,
	})
}

func ensureRules(kind, name string, options reconciliation.ReconcileRoleOptions) error {
	if _, err := options.Run(); err != nil {
		return fmt.Errorf("ensure %s %q: %w", kind, name, err)
	}
	return nil
}

func ensureSubjects(kind, name string, options reconciliation.ReconcileRoleBindingOptions) error {
	if _, err := options.Run(); err != nil {
		return fmt.Errorf("ensure %s %q: %w", kind, name, err)
	}
	return nil
}
