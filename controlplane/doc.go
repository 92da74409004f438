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
//	config                  the flags, validated, and every path derived from them
//	datadir                 one process at a time; no data from a newer version
//	pki, kubeconfig         certificates, keys, identities
//	etcd, listen, apiserver, controllermanager, scheduler, rbac   the components
//	scheduler/volumebinding our one scheduler plugin: it waits for volumes by events
//	supervisor              starts them in order, stops them in reverse
//	bootstrap               Kubernetes' own default roles, without upstream's wait
//	listedrbac              reads all roles at once when a start checks them
//	gctuner                 garbage collection: often while idle, rarely while busy and during a start
//	idletuner               saves wake-ups while the cluster is not in use
//	watchprobe              detects that the controller manager has started
//	atomicfile              replaces private files atomically
//	statuspipe              writes one JSON line for each state that a component reaches
//
// The module imports nothing of the root module, because that would add the root's
// requirements to this one; so atomicfile is a copy of internal/atomicfile. Module codepages,
// which releases the memory of code that only the start needed, requires nothing.
//
// Only etcd, apiserver, bootstrap, controllermanager and scheduler import the real
// components; the other packages build and test in seconds.
package controlplane
