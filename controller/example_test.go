package controller_test

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/reconcile"
)

// A controller without a source; Enqueue adds its keys.
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

// A controller of nodes, whose requests are the nodes' names. Watches maps each Pod to the node that it runs on.
func ExampleWatches() {
	ctx, stop := context.WithCancel(context.Background())
	factory := informers.NewSharedInformerFactory(fake.NewClientset(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.PodSpec{NodeName: "node-1"},
	}), 0)
	pods := factory.Core().V1().Pods().Informer()
	reconciler := reconcile.TypedFunc[string](func(_ context.Context, node string) (reconcile.Result, error) {
		fmt.Println("reconciling", node)
		stop()
		return reconcile.Result{}, nil
	})
	c, err := controller.NewTyped(reconciler, controller.Deps{}, controller.Config{Name: "nodes"})
	if err != nil {
		fmt.Println(err)
		return
	}
	c.Watch(controller.Watches(pods, func(pod *corev1.Pod) []string { return []string{pod.Spec.NodeName} }))
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	fmt.Println("ended:", c.Start(ctx))
	// Output:
	// reconciling node-1
	// ended: <nil>
}

// A request of any comparable type names the work: here a disk in one of several zones.
func ExampleNewTyped() {
	type disk struct{ zone, name string }
	ctx, stop := context.WithCancel(context.Background())
	reconciler := reconcile.TypedFunc[disk](func(_ context.Context, d disk) (reconcile.Result, error) {
		fmt.Printf("reconciling %s in %s\n", d.name, d.zone)
		stop()
		return reconcile.Result{}, nil
	})
	c, err := controller.NewTyped(reconciler, controller.Deps{}, controller.Config{Name: "disks"})
	if err != nil {
		fmt.Println(err)
		return
	}
	c.Enqueue(disk{zone: "zone-a", name: "data"})
	fmt.Println("ended:", c.Start(ctx))
	// Output:
	// reconciling data in zone-a
	// ended: <nil>
}

// A storage without notifications is listed once a minute.
func ExamplePoll() {
	ctx, stop := context.WithCancel(context.Background())
	list := func(context.Context) ([]string, error) { return []string{"disk-1"}, nil }
	reconciler := reconcile.TypedFunc[string](func(_ context.Context, disk string) (reconcile.Result, error) {
		fmt.Println("reconciling", disk)
		stop()
		return reconcile.Result{}, nil
	})
	c, err := controller.NewTyped(reconciler, controller.Deps{}, controller.Config{Name: "disks"})
	if err != nil {
		fmt.Println(err)
		return
	}
	c.Watch(controller.Poll(controller.PollConfig{Name: "storage", Period: time.Minute}, list))
	fmt.Println("ended:", c.Start(ctx))
	// Output:
	// reconciling disk-1
	// ended: <nil>
}
