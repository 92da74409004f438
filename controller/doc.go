// Package controller runs a Reconciler: it takes keys from its sources into a queue, hands each to one of its
// workers, and acts on what the Reconciler answers.
//
// What it promises:
//   - one key is never reconciled twice at the same time;
//   - events for a key that waits are merged into one; a key added while it is being reconciled runs once more;
//   - keys run in the order in which they became due, live events before the initial list and resyncs, and even
//     under a stream of live events the others get one turn in every 33;
//   - errors and panics are counted and retried with a delay that doubles with each failure of that key;
//   - Start returns once its context has ended, with every goroutine that it began gone.
//
// A controller is put together from sources and then started:
//
//	c, err := controller.New(reconciler, controller.Deps{Logger: logger}, controller.Config{Name: "web", Workers: 4})
//	...
//	c.Watch(controller.For(sets.Informer()))
//	c.Watch(controller.Owns(pods.Informer(), controller.Owner{Group: "apps", Kind: "ReplicaSet"}))
//	err = c.Start(ctx)
//
// The informers belong to the caller, who runs them and may share them between controllers.
package controller
