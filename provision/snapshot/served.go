package snapshot

import (
	"context"
	"fmt"
	"log/slog"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/berth-dev/berth/internal/listwatch"
	"github.com/berth-dev/berth/provision/snapshot/api"
)

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// WaitServed waits until the API server serves VolumeSnapshots and their contents: a cluster may get their definitions
// later, or never.
func WaitServed(ctx context.Context, client api.Client, objects dynamic.Interface, logger *slog.Logger) error {
	waiting := false
	for _, kind := range []struct {
		plural string
		list   func() error
	}{
		{api.ResourceContents, func() error {
			_, err := client.VolumeSnapshotContents().List(ctx, metav1.ListOptions{Limit: 1})
			return err
		}},
		{api.ResourceSnapshots, func() error {
			_, err := client.VolumeSnapshots("").List(ctx, metav1.ListOptions{Limit: 1})
			return err
		}},
		{api.ResourceClasses, func() error {
			_, err := client.VolumeSnapshotClasses().List(ctx, metav1.ListOptions{Limit: 1})
			return err
		}},
	} {
		err := kind.list()
		if apierrors.IsForbidden(err) {
			logger.Warn("not allowed to read snapshots: grant get, list and watch, or none are taken", "resource", kind.plural, "error", err)
		}
		if !apierrors.IsNotFound(err) {
			continue // served; the informers retry after any other error
		}
		if !waiting {
			waiting = true
			logger.Info("the cluster has no VolumeSnapshots; waiting for their CustomResourceDefinitions")
		}
		if err := waitEstablished(ctx, objects, kind.plural+"."+api.GroupName); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// waitEstablished waits for one CustomResourceDefinition.
func waitEstablished(ctx context.Context, objects dynamic.Interface, name string) error {
	lister := listwatch.Select(objects.Resource(definitions), objects, func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	})
	_, err := watchtools.UntilWithSync(ctx, lister, &unstructured.Unstructured{}, nil, func(event watch.Event) (bool, error) {
		definition, ok := event.Object.(*unstructured.Unstructured)
		return ok && event.Type != watch.Deleted && isEstablished(definition), nil
	})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("wait for CustomResourceDefinition %q: %w", name, err)
	}
	return ctx.Err()
}

func isEstablished(definition *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(definition.Object, "status", "conditions") // none if of another type
	for _, entry := range conditions {
		condition, ok := entry.(map[string]any)
		if ok && condition["type"] == "Established" && condition["status"] == "True" {
			return true
		}
	}
	return false
}
