// Package provision provisions PersistentVolumes for claims: it watches PersistentVolumeClaims, calls a [Provisioner] for
// those that are its own, saves the PersistentVolume that the Provisioner returns, and deletes the storage when the volume
// is released.
//
// To offer storage, implement Provisioner and its two context methods ([ProvisionerContext], [DeleterContext]), and pass it
// to [New]. [ProvisionController.RunContext] does the rest: retries, leader election, events, metrics, and that no volume
// leaks. Before the first call for a claim the controller writes its intent into the API, as a finalizer on the claim, so
// that the claim cannot disappear while the outcome of the call is unknown; it removes the finalizer once the outcome is
// saved and the claim is Bound or being deleted. What a crash interrupts is repeated with the same volume name. A
// Provisioner must therefore be idempotent: the same VolumeOptions.PVName is the same volume.
//
// NewProvisionController, Provisioner.Provision without a context and [ProvisionerExt] serve code that was written for
// sig-storage-lib-external-provisioner.
//
// # The phases of a claim
//
// A claim is in one phase at a time:
//
//	Pending -> Queued -> Calling -> Saving -> Binding -> Bound -> Finishing -> Forgotten
//
// The sync workers collect the facts about a claim, and the function next decides from the phase and the facts what to do:
// write the intent, create the PersistentVolume, remove the intent. The call workers, of which there are Threadiness, only
// call the Provisioner. No such worker ever sleeps: a claim that has to wait is queued with a delay.
//
// Writes that do not help a claim to become Bound (removing the intent of a Bound claim, Normal events) yield to claims that
// wait for such writes, half a minute at most, events half a second: otherwise the last steps of the first of hundreds of
// claims would delay the others. Warnings, and the intent of a claim that is being deleted, never yield.
//
// The queues are client-go's and not those of package controller: when the controller stops, its calls end first, then the
// results are saved, and intents are removed last, each by workers of their own, and a claim is in several queues at once.
//
// # Retries
//
// A claim that failed is retried after its backoff, and at once if the claim, its StorageClass or its selected node changes.
// An InfeasibleError lengthens the backoff and does not change what ends it. After FailedProvisionThreshold retries a
// Warning reports that the controller gave up; then a change starts over, and a resync allows one more try. A volume that
// may exist is never given up: the intent stays on the claim.
package provision
