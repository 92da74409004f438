package snapshot

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/listwatch"
	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/provision/snapshot/groupapi"
)

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// servedKind is a kind that the API server may serve: its list fails with NotFound if it does not.
type servedKind struct {
	plural, group string
	list          func() error
}

// WaitServed waits until the API server serves VolumeSnapshots and their contents: a cluster may get their definitions
// later, or never.
func WaitServed(ctx context.Context, client api.Client, objects dynamic.Interface, logger *slog.Logger) error {
	one := metav1.ListOptions{Limit: 1}
	return waitServed(ctx, objects, logger, "VolumeSnapshots", []servedKind{
		{api.ResourceContents, api.GroupName, func() error { _, err := client.VolumeSnapshotContents().List(ctx, one); return err }},
		{api.ResourceSnapshots, api.GroupName, func() error { _, err := client.VolumeSnapshots("").List(ctx, one); return err }},
		{api.ResourceClasses, api.GroupName, func() error { _, err := client.VolumeSnapshotClasses().List(ctx, one); return err }},
	})
}

// forbiddenRetry is when to ask again for group snapshots that may not be read: rights have no event for those who lack them.
const forbiddenRetry = 5 * time.Minute

// WaitGroupsServed is WaitServed for VolumeGroupSnapshots. As long as they may not be read it waits, too: whoever takes only
// single snapshots needs no right for groups.
func WaitGroupsServed(ctx context.Context, client groupapi.Client, objects dynamic.Interface, logger *slog.Logger) error {
	one := metav1.ListOptions{Limit: 1}
	for logged := false; ; logged = true {
		_, err := client.VolumeGroupSnapshotContents().List(ctx, one)
		if !apierrors.IsForbidden(err) {
			break
		}
		if !logged {
			logger.Info("not allowed to read group snapshots: none are taken; grant get, list and watch of "+groupapi.GroupName, "error", err)
		}
		if !wakeup.Sleep(ctx, clock.RealClock{}, forbiddenRetry) {
			return ctx.Err()
		}
	}
	return waitServed(ctx, objects, logger, "VolumeGroupSnapshots", []servedKind{
		{groupapi.ResourceContents, groupapi.GroupName, func() error { _, err := client.VolumeGroupSnapshotContents().List(ctx, one); return err }},
		{groupapi.ResourceGroups, groupapi.GroupName, func() error { _, err := client.VolumeGroupSnapshots("").List(ctx, one); return err }},
		{groupapi.ResourceClasses, groupapi.GroupName, func() error { _, err := client.VolumeGroupSnapshotClasses().List(ctx, one); return err }},
	})
}

func waitServed(ctx context.Context, objects dynamic.Interface, logger *slog.Logger, what string, kinds []servedKind) error {
	waiting := false
	for _, kind := range kinds {
		err := kind.list()
		if apierrors.IsForbidden(err) {
			logger.Warn("not allowed to read snapshots: grant get, list and watch, or none are taken", "resource", kind.plural, "error", err)
		}
		if !apierrors.IsNotFound(err) {
			continue // served; the informers retry after any other error
		}
		if !waiting {
			waiting = true
			logger.Info("the cluster does not serve a kind of snapshots; waiting for its CustomResourceDefinitions", "kind", what)
		}
		if err := waitEstablished(ctx, objects, kind.plural+"."+kind.group); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// waitEstablished waits for one CustomResourceDefinition.
func waitEstablished(ctx context.Context, objects dynamic.Interface, name string) error {
	lister := listwatch.Select(objects.Resource(definitions), objects, listwatch.Named(name))
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
