package controller_test

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/reconcile"
)

// A controller fed by hand; one over informers would be given sources by Watch.
func ExampleNew() {
	ctx, stop := context.WithCancel(context.Background())
	reconciler := reconcile.Func(func(_ context.Context, request reconcile.Request) (reconcile.Result, error) {
		fmt.Println("reconciling", request)
		stop()
		return reconcile.Result{}, nil
	})
	c, err := controller.New(reconciler, controller.Deps{}, controller.Config{Name: "example"})
	if err != nil {
		fmt.Println(err)
		return
	}
	c.Enqueue(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: "web"}})
	fmt.Println("ended:", c.Start(ctx))
	// Output:
	// reconciling default/web
	// ended: <nil>
}
