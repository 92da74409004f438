package berthtest

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// Apply applies a manifest of one or more objects, YAML or JSON, by server-side apply. Objects without a namespace are of the
// test's.
func (c *Cluster) Apply(manifest string) {
	c.t.Helper()
	args := []string{"--data-dir", c.running.cluster.DataDir(), "kubectl", "--namespace", c.namespace, "apply", "--server-side", "-f", "-"}
	cmd := exec.CommandContext(c.t.Context(), c.running.berth, args...)
	cmd.Stdin = strings.NewReader(manifest)
	if out, err := cmd.CombinedOutput(); err != nil {
		c.t.Fatalf("berthtest: apply: %v: %s", err, out)
	}
}

// Eventually waits until the object satisfies a condition, and returns it then. object has the name, and the namespace unless
// that is the test's; its type, one of client-go's scheme or *unstructured.Unstructured, says what it is. It need not exist yet. The
// argument what is for the error: what the test waits for. The condition is evaluated at each change of the object, not periodically.
func Eventually[T metav1.Object](c *Cluster, object T, what string, satisfied func(T) bool) T {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), waitTimeout)
	defer cancel()
	var last T
	err := c.watch(ctx, object, func(u *unstructured.Unstructured) (bool, error) {
		current, err := convert[T](u)
		if err != nil {
			return false, err
		}
		last = current
		return satisfied(current), nil
	})
	if err != nil {
		c.t.Fatalf("berthtest: wait until %T %s is %s: %v", object, object.GetName(), what, err)
	}
	return last
}

// convert makes an object of type T of what the API server sent.
func convert[T metav1.Object](u *unstructured.Unstructured) (T, error) {
	if same, ok := any(u).(T); ok {
		return same, nil
	}
	var none T
	made, err := scheme.Scheme.New(u.GroupVersionKind())
	if err != nil {
		return none, err
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, made); err != nil {
		return none, err
	}
	typed, ok := made.(T)
	if !ok {
		return none, fmt.Errorf("%s is a %T, not a %T", u.GroupVersionKind(), made, none)
	}
	return typed, nil
}

// watch calls seen with the object as it is and at each change, until seen returns true.
func (c *Cluster) watch(ctx context.Context, object metav1.Object, seen func(*unstructured.Unstructured) (bool, error)) error {
	resource, err := c.resource(object)
	if err != nil {
		return err
	}
	selector := fields.OneTermEqualSelector("metadata.name", object.GetName()).String()
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = selector
			return resource.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = selector
			return resource.Watch(ctx, options)
		},
	}
	_, err = watchtools.UntilWithSync(ctx, source, &unstructured.Unstructured{}, nil, func(e watch.Event) (bool, error) {
		u, ok := e.Object.(*unstructured.Unstructured)
		if !ok || e.Type == watch.Deleted {
			return false, nil
		}
		return seen(u)
	})
	return err
}

// resource returns the client for the object's kind.
func (c *Cluster) resource(object metav1.Object) (dynamic.ResourceInterface, error) {
	typed, ok := object.(runtime.Object)
	if !ok {
		return nil, fmt.Errorf("%T is no API object", object)
	}
	kind, err := kindOfObject(typed)
	if err != nil {
		return nil, err
	}
	groups, err := restmapper.GetAPIGroupResources(c.running.client.Discovery())
	if err != nil {
		return nil, fmt.Errorf("discover the API server's resources: %w", err)
	}
	mapping, err := restmapper.NewDiscoveryRESTMapper(groups).RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(c.running.config)
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() != "namespace" {
		return client.Resource(mapping.Resource), nil
	}
	namespace := object.GetNamespace()
	if namespace == "" {
		namespace = c.namespace
	}
	return client.Resource(mapping.Resource).Namespace(namespace), nil
}

func kindOfObject(object runtime.Object) (schema.GroupVersionKind, error) {
	if u, ok := object.(*unstructured.Unstructured); ok {
		if u.GroupVersionKind().Empty() {
			return schema.GroupVersionKind{}, errors.New("the object needs apiVersion and kind")
		}
		return u.GroupVersionKind(), nil
	}
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	if err != nil {
		return schema.GroupVersionKind{}, err
	}
	return kinds[0], nil
}

// makeNamespace makes a namespace for a test.
func (c *Cluster) makeNamespace() string {
	c.t.Helper()
	made, err := c.running.client.CoreV1().Namespaces().Create(c.t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatalf("berthtest: make a namespace: %v", err)
	}
	return made.Name
}

// deleteNamespace deletes the test's namespace and waits until it is gone with all that is in it.
func (c *Cluster) deleteNamespace() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.t.Context()), stopTimeout)
	defer cancel()
	if err := deleteNamespace(ctx, c.running, c.namespace); err != nil {
		c.t.Errorf("berthtest: delete the test's namespace %s: %v", c.namespace, err)
	}
}

func deleteNamespace(ctx context.Context, r *running, name string) error {
	namespaces := r.client.CoreV1().Namespaces()
	options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()}
	watcher, err := namespaces.Watch(ctx, options)
	if err != nil {
		return err
	}
	defer watcher.Stop()
	if err := namespaces.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		if apierrors.IsNotFound(err) {
			return nil // by the test itself
		}
		return err
	}
	var last runtime.Object
	for {
		select {
		case event, ok := <-watcher.ResultChan():
			if !ok {
				return errors.New("the watch ended before it was gone")
			}
			if event.Type == watch.Deleted {
				return nil
			}
			last = event.Object
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", ctx.Err(), remaining(last))
		}
	}
}

// remaining says what a namespace's deletion waits for.
func remaining(object runtime.Object) string {
	namespace, ok := object.(*corev1.Namespace)
	if !ok {
		return "nothing was seen of it"
	}
	var all []string
	for i := range namespace.Status.Conditions {
		if c := &namespace.Status.Conditions[i]; c.Status == corev1.ConditionTrue {
			all = append(all, c.Message)
		}
	}
	return strings.Join(all, "; ")
}
