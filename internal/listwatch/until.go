package listwatch

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// Named selects the object of that name.
func Named(name string) func(*metav1.ListOptions) {
	return func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	}
}

// UntilNamed watches the object of that name until it exists and fits, or ctx ends, whose error it then returns. The object
// may be created or created again meanwhile.
func UntilNamed[L runtime.Object, T runtime.Object](ctx context.Context, api API[L], client any, name string, kind T, fits func(T) bool) error {
	if err := Until(ctx, Select(api, client, Named(name)), kind, fits); err != nil {
		return fmt.Errorf("watch %q: %w", name, err)
	}
	return nil
}

// Until watches the objects of the source until one exists that fits, or ctx ends, whose error it then returns.
func Until[T runtime.Object](ctx context.Context, source cache.ListerWatcher, kind T, fits func(T) bool) error {
	_, err := watchtools.UntilWithSync(ctx, source, kind, nil, func(event watch.Event) (bool, error) {
		object, ok := event.Object.(T)
		return ok && event.Type != watch.Deleted && fits(object), nil
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
