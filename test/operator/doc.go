// Command operator is a small operator as users write them, with controller-runtime: it keeps a ConfigMap for each Greeting,
// and its admission webhook completes and validates Greetings. An integration test runs it on a berth cluster.
//
// It is a module of its own, because nothing of Berth's needs controller-runtime.
package main
