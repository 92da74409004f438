// Package modify applies VolumeAttributesClasses to the volumes of a CSI driver when their claims name another one: it does what
// the sidecar external-resizer does for them. The contract is KEP-3751, as the API of Kubernetes 1.36 has it.
//
// A modification has these steps. Each can be repeated, and each is in the API before the next one begins, so that the next
// process can continue when this one dies:
//
//  1. status.modifyVolumeStatus of the claim is InProgress and names the class, with the condition ModifyingVolume;
//  2. the driver is called with the parameters of the class;
//  3. the PersistentVolume's volumeAttributesClassName is set;
//  4. the claim's status.currentVolumeAttributesClassName is set, and the modification is complete.
//
// A class that does not exist leaves the modification Pending until it is created. A final error is the condition
// ModifyVolumeError; parameters that the driver rejects (InvalidArgument) make the modification Infeasible, too. A claim may name
// another class at any time, which is then applied instead: a call sets all attributes, so that the last one counts. A claim
// that names the class again that the volume has gives a failed modification up. If the outcome of its last call is unknown, the
// class that the volume had is applied again; a volume that had none gets a final result of the call first.
//
// The protection of classes in use (the finalizer kubernetes.io/vac-protection) is kube-controller-manager's.
package modify
