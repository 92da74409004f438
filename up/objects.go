package up

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/berth-dev/berth/internal/contain"
)

// fieldManager is the name under which `berth up` applies its own objects.
const fieldManager = "berth-up"

// apply applies the objects by server-side apply: applying them again changes nothing, and other fields keep the changes
// that users made.
func apply(ctx context.Context, config *rest.Config, namespace string, objects []*unstructured.Unstructured) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create an API client: %w", err)
	}
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("create an API client: %w", err)
	}
	groups, err := restmapper.GetAPIGroupResources(disco)
	if err != nil {
		return fmt.Errorf("discover the API server's resources: %w", err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	for _, object := range objects {
		kind := object.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return fmt.Errorf("apply %s %q: %w", kind.Kind, object.GetName(), err)
		}
		var resource dynamic.ResourceInterface = client.Resource(mapping.Resource)
		if mapping.Scope.Name() == "namespace" {
			ns := object.GetNamespace()
			if ns == "" {
				ns = namespace
			}
			resource = client.Resource(mapping.Resource).Namespace(ns)
		}
		if err := applyOne(ctx, resource, object); err != nil {
			return err
		}
	}
	return nil
}

// applyBuiltIn is apply for objects of Kubernetes' own kinds, which have their namespaces and do not depend on each other: it applies them
// at the same time, and asks for no API resources, whose names follow from the kinds.
func applyBuiltIn(ctx context.Context, config *rest.Config, objects []*unstructured.Unstructured) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create an API client: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, object := range objects {
		resource, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
		group.Go(contain.Func("up.applyBuiltIn", object.GetName(), func() error {
			return applyOne(ctx, client.Resource(resource).Namespace(object.GetNamespace()), object)
		}))
	}
	return group.Wait()
}

// defaultClassSuffix ends the annotations by which a class is the default: of StorageClasses, VolumeSnapshotClasses and
// VolumeGroupSnapshotClasses.
const defaultClassSuffix = "/is-default-class"

// applyOne applies an object. Fields of it that users have changed are set back, but for whether a class is the default.
func applyOne(ctx context.Context, to dynamic.ResourceInterface, object *unstructured.Unstructured) error {
	_, err := to.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: fieldManager})
	if apierrors.IsConflict(err) {
		if changesDefaultClass(err) {
			object = object.DeepCopy()
			annotations := object.GetAnnotations()
			maps.DeleteFunc(annotations, func(key, _ string) bool { return strings.HasSuffix(key, defaultClassSuffix) })
			object.SetAnnotations(annotations)
		}
		_, err = to.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	}
	if err != nil {
		return fmt.Errorf("apply %s %q: %w", object.GetKind(), object.GetName(), err)
	}
	return nil
}

// changesDefaultClass reports whether a conflict is about an annotation by which a class is the default.
func changesDefaultClass(conflict error) bool {
	var status apierrors.APIStatus
	if !errors.As(conflict, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(cause metav1.StatusCause) bool {
		return cause.Type == metav1.CauseTypeFieldManagerConflict && strings.HasSuffix(cause.Field, defaultClassSuffix)
	})
}

// parseManifest parses the objects of a YAML file. Its errors name the document.
func parseManifest(data []byte) ([]*unstructured.Unstructured, error) {
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	var objects []*unstructured.Unstructured
	for number := 1; ; number++ {
		var raw map[string]any
		err := decoder.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", number, err)
		}
		if len(raw) == 0 {
			continue
		}
		object := &unstructured.Unstructured{Object: raw}
		if object.GetKind() == "" || object.GetAPIVersion() == "" || object.GetName() == "" {
			return nil, fmt.Errorf("document %d: needs apiVersion, kind and metadata.name", number)
		}
		objects = append(objects, object)
	}
}

// toUnstructured converts a typed object, whose TypeMeta is set, for apply.
func toUnstructured(object runtime.Object) (*unstructured.Unstructured, error) {
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("convert %T: %w", object, err)
	}
	return &unstructured.Unstructured{Object: raw}, nil
}
