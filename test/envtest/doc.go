// Command envtest runs controller-runtime's own test suites, unchanged, on clusters of berthtest.Environment in place of
// envtest.Environment, and compares what passes with a list. With -upstream it runs them with envtest's own etcd and kube-apiserver.
//
// The suites are those of the module that go.mod pins. In a copy of it, overlay/envtest.go takes the place of the files of
// controller-runtime's package envtest; it has the same names and passes all on to package berthtest: that is what a change of the
// import does, and it leaves the suites as they are, but for two specs about the paths of etcd and kube-apiserver.
//
// passes.txt lists the specs that pass; those that begin with "!" may fail on a whole cluster, for the reason above them, but pass
// with -api-only, as with envtest itself. A run fails if another one does not pass.
//
// It is a module of its own, because nothing of Berth's needs controller-runtime.
package main
