// Package provision turns claims into volumes: it watches PersistentVolumeClaims, calls a Provisioner
// for those that are its own, saves the PersistentVolume that the Provisioner describes, and has the
// storage removed again when the volume is released.
//
// Whoever has storage to offer writes a Provisioner (two methods) and hands it to New. Everything else
// is the controller's: retries, leader election, events, metrics and, above all, that nothing leaks.
// Before the first call for a claim its intent is written into the API, as a finalizer on the claim, so
// that the claim cannot vanish while nobody knows whether a volume exists; it is taken off once the
// outcome is saved and the claim is bound or being deleted. What a crash interrupts is repeated with the
// same volume name. A Provisioner must therefore be idempotent: the same VolumeOptions.PVName is the same
// volume.
//
// # The way of a claim
//
//	events -> decide queue -> intent patch -> call queue -> Provision -> decide queue -> PV create -> Bound -> intent removed
//
// The decide workers only look and write to the API; the call workers (Threadiness of them) only call
// the Provisioner. No such worker ever sleeps: what must wait goes back into the queue with a delay.
//
// What nobody waits for (removing the intent of a claim that is Bound, Normal events) is done when no claim waits to be
// Bound, or after half a minute: hundreds of claims at once would else be held up by the ends of the first. Warnings,
// and the intent of a claim that is being deleted, never give way.
//
// # What starts a claim again
//
// While retries last, a failed claim is tried again after its backoff, and at once if the claim, its
// StorageClass or its selected node changed. An InfeasibleError lengthens that backoff, not what ends it.
// After FailedProvisionThreshold retries a last Warning says that the controller gave up; a change starts
// over, a resync allows one more try. Giving up never forgets a volume that may exist: the intent stays on
// the claim.
package provision
