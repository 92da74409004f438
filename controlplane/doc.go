// Package controlplane is the module of berth-controlplane: etcd,
// kube-apiserver, kube-controller-manager and kube-scheduler in ONE process,
// each through its own app package's options and Run.
//
// It is a module of its own because k8s.io/kubernetes needs a replace line for
// every staging module, and a replace line binds only the module that holds it:
// kept here, they touch nothing else in the repository.
//
// Build:
//
//	cd controlplane
//	go build -trimpath -ldflags "$(./ldflags.sh)" -o ../bin/berth-controlplane ./cmd/berth-controlplane
//
// The folders, in the order in which a start uses them:
//
//	cmd/berth-controlplane  flags, signals, exit codes
//	config                  what was asked for, checked, and every path made from it
//	datadir                 one process at a time; no data from a newer version
//	pki, kubeconfig         certificates, keys, identities
//	etcd, listen, apiserver, controllermanager, scheduler, rbac   the components
//	scheduler/volumebinding the scheduler's one plugin of ours: waits for volumes by events
//	stack                   starts them in order, stops them in reverse
//	bootstrap               Kubernetes' own default roles, without upstream's wait
//	gcpace                  the garbage collector's pace: small at rest, quick when there is much to do
//	firstwatch              how the controller manager's start is noticed
//	atomicfile              private files, whole or not at all
//	notify                  one JSON line for each state a component reaches
//
// Only etcd, apiserver, bootstrap, controllermanager and scheduler import the real
// components; everything else builds and tests in seconds.
package controlplane
