package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/reconcile"
)

// scaler keeps a number of workers for every name, as a type that is a Reconciler.
type scaler struct{ want, have map[string]int }

func (s scaler) Reconcile(_ context.Context, request reconcile.Request) (reconcile.Result, error) {
	name := request.Name
	switch {
	case s.want[name] < 0:
		return reconcile.Result{}, reconcile.TerminalError(errors.New("replicas must not be negative"))
	case s.have[name] < s.want[name]:
		s.have[name]++ // one step; reconcile again a little later
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	return reconcile.Result{}, nil
}

func ExampleReconciler() {
	var r reconcile.Reconciler = scaler{want: map[string]int{"web": 1, "bad": -1}, have: map[string]int{}}
	for _, name := range []string{"web", "web", "bad"} {
		request := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: name}}
		result, err := r.Reconcile(context.Background(), request)
		fmt.Println(request, result.RequeueAfter, err)
	}
	// Output:
	// default/web 1s <nil>
	// default/web 0s <nil>
	// default/bad 0s terminal error: replicas must not be negative
}

func ExampleFunc() {
	r := reconcile.Func(func(_ context.Context, request reconcile.Request) (reconcile.Result, error) {
		fmt.Println("looking at", request.Name)
		return reconcile.Result{}, nil
	})
	_, _ = r.Reconcile(context.Background(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "node-1"}})
	// Output: looking at node-1
}

func ExampleTypedFunc() {
	type attachment struct{ volume, node string }
	r := reconcile.TypedFunc[attachment](func(_ context.Context, a attachment) (reconcile.Result, error) {
		fmt.Println(a.volume, "to", a.node)
		return reconcile.Result{}, nil
	})
	_, _ = r.Reconcile(context.Background(), attachment{volume: "data", node: "node-1"})
	// Output: data to node-1
}
