// Package kuberuntime decides what the container runtime is to be told about one Pod, and words it.
//
// Two kinds of things are in here, and neither of them calls the runtime:
//
//   - The decision: [ComputeActions] looks at a Pod and at what the runtime holds of it, and says what is to be
//     killed, removed and started now, and when to look again. [TerminationPlan] says in which order a Pod ends.
//   - The wording: a [Builder] turns a Pod into the CRI's PodSandboxConfig and ContainerConfig.
//
// The files a container needs beside its volumes (termination message, log directory) are made by the functions of
// files.go, which are the only ones that touch the disk.
package kuberuntime
