package listedrbac

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	rbacclient "k8s.io/client-go/kubernetes/typed/rbac/v1"

	"github.com/berth-dev/berth/controlplane/contain"
)

// client is a client whose first requests for single roles and bindings are answered from lists.
type client struct {
	kubernetes.Interface
	rbac *rbac
}

// New lists all roles and bindings and returns the client that uses the lists. It is safe for concurrent use.
func New(ctx context.Context, all kubernetes.Interface) (kubernetes.Interface, error) {
	r := &rbac{RbacV1Interface: all.RbacV1()}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(contain.Func("listedrbac.clusterRoles", func() error {
		list, err := r.RbacV1Interface.ClusterRoles().List(ctx, metav1.ListOptions{})
		if err == nil {
			r.clusterRoles = newUnread("clusterroles", list.Items, func(o *rbacv1.ClusterRole) *metav1.ObjectMeta { return &o.ObjectMeta })
		}
		return wrap("cluster roles", err)
	}))
	group.Go(contain.Func("listedrbac.clusterBindings", func() error {
		list, err := r.RbacV1Interface.ClusterRoleBindings().List(ctx, metav1.ListOptions{})
		if err == nil {
			r.clusterBindings = newUnread("clusterrolebindings", list.Items, func(o *rbacv1.ClusterRoleBinding) *metav1.ObjectMeta { return &o.ObjectMeta })
		}
		return wrap("cluster role bindings", err)
	}))
	group.Go(contain.Func("listedrbac.roles", func() error {
		list, err := r.RbacV1Interface.Roles(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
		if err == nil {
			r.roles = newUnread("roles", list.Items, func(o *rbacv1.Role) *metav1.ObjectMeta { return &o.ObjectMeta })
		}
		return wrap("roles", err)
	}))
	group.Go(contain.Func("listedrbac.bindings", func() error {
		list, err := r.RbacV1Interface.RoleBindings(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
		if err == nil {
			r.bindings = newUnread("rolebindings", list.Items, func(o *rbacv1.RoleBinding) *metav1.ObjectMeta { return &o.ObjectMeta })
		}
		return wrap("role bindings", err)
	}))
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return &client{Interface: all, rbac: r}, nil
}

func wrap(what string, err error) error {
	if err != nil {
		return fmt.Errorf("list %s: %w", what, err)
	}
	return nil
}

func (c *client) RbacV1() rbacclient.RbacV1Interface { return c.rbac }

// rbac has what no request has asked for yet.
type rbac struct {
	rbacclient.RbacV1Interface
	clusterRoles    *unread[rbacv1.ClusterRole]
	clusterBindings *unread[rbacv1.ClusterRoleBinding]
	roles           *unread[rbacv1.Role]
	bindings        *unread[rbacv1.RoleBinding]
}

func (r *rbac) ClusterRoles() rbacclient.ClusterRoleInterface {
	return &clusterRoles{r.RbacV1Interface.ClusterRoles(), r.clusterRoles}
}

func (r *rbac) ClusterRoleBindings() rbacclient.ClusterRoleBindingInterface {
	return &clusterBindings{r.RbacV1Interface.ClusterRoleBindings(), r.clusterBindings}
}

func (r *rbac) Roles(namespace string) rbacclient.RoleInterface {
	return &roles{r.RbacV1Interface.Roles(namespace), r.roles, namespace}
}

func (r *rbac) RoleBindings(namespace string) rbacclient.RoleBindingInterface {
	return &bindings{r.RbacV1Interface.RoleBindings(namespace), r.bindings, namespace}
}

type clusterRoles struct {
	rbacclient.ClusterRoleInterface
	unread *unread[rbacv1.ClusterRole]
}

func (c *clusterRoles) Get(ctx context.Context, name string, options metav1.GetOptions) (*rbacv1.ClusterRole, error) {
	return c.unread.get(ctx, "", name, options, c.ClusterRoleInterface.Get)
}

type clusterBindings struct {
	rbacclient.ClusterRoleBindingInterface
	unread *unread[rbacv1.ClusterRoleBinding]
}

func (c *clusterBindings) Get(ctx context.Context, name string, options metav1.GetOptions) (*rbacv1.ClusterRoleBinding, error) {
	return c.unread.get(ctx, "", name, options, c.ClusterRoleBindingInterface.Get)
}

type roles struct {
	rbacclient.RoleInterface
	unread    *unread[rbacv1.Role]
	namespace string
}

func (c *roles) Get(ctx context.Context, name string, options metav1.GetOptions) (*rbacv1.Role, error) {
	return c.unread.get(ctx, c.namespace, name, options, c.RoleInterface.Get)
}

type bindings struct {
	rbacclient.RoleBindingInterface
	unread    *unread[rbacv1.RoleBinding]
	namespace string
}

func (c *bindings) Get(ctx context.Context, name string, options metav1.GetOptions) (*rbacv1.RoleBinding, error) {
	return c.unread.get(ctx, c.namespace, name, options, c.RoleBindingInterface.Get)
}

// key names an object of one kind.
type key struct{ namespace, name string }

// unread are the objects of one kind, until each was requested.
type unread[T any] struct {
	resource string

	mu      sync.Mutex
	objects map[key]*T
	asked   map[key]bool
}

func newUnread[T any](resource string, items []T, meta func(*T) *metav1.ObjectMeta) *unread[T] {
	u := &unread[T]{resource: resource, objects: make(map[key]*T, len(items)), asked: map[key]bool{}}
	for i := range items {
		of := meta(&items[i])
		u.objects[key{of.Namespace, of.Name}] = &items[i]
	}
	return u
}

// get returns the object, from the list the first time and by request after that. The caller owns it.
func (u *unread[T]) get(ctx context.Context, namespace, name string, options metav1.GetOptions,
	request func(context.Context, string, metav1.GetOptions) (*T, error)) (*T, error) {
	k := key{namespace, name}
	u.mu.Lock()
	first, object := !u.asked[k], u.objects[k]
	u.asked[k] = true
	delete(u.objects, k)
	u.mu.Unlock()
	switch {
	case !first:
		return request(ctx, name, options)
	case object == nil:
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: u.resource}, name)
	default:
		return object, nil
	}
}
