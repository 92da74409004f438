// Package controller runs a Reconciler: its sources add keys to a queue, its workers reconcile them, and the result decides
// when a key runs again.
//
// It guarantees:
//   - one key is never reconciled twice at the same time;
//   - events for a waiting key are merged; a key added while it is being reconciled runs once more;
//   - keys run in the order in which they became due, live events before the initial list and resyncs; under a constant
//     stream of live events, every 33rd run is one of the others;
//   - errors and panics are counted and retried with a delay that doubles with each failure of that key;
//   - Start returns once its context has ended, after every goroutine that it started has ended.
//
// In Berth it runs the controllers that reconcile named objects: replicaset, attachdetach/attacher, provision/resize and
// provision/capacity. The provisioner, the attach/detach reconciler and the Pod workers have loops of their own, because
// several queues or operations share the state of one key there.
//
// A controller is created, gets its sources, and is started:
//
//	c, err := controller.New(reconciler, controller.Deps{Logger: logger}, controller.Config{Name: "web", Workers: 4})
//	...
//	c.Watch(controller.For(sets.Informer()))
//	c.Watch(controller.Owns(pods.Informer(), controller.Owner{Group: "apps", Kind: "ReplicaSet"}))
//	err = c.Start(ctx)
//
// The informers belong to the caller, who runs them and may share them between controllers.
package controller
