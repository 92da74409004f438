// Package kuberuntime computes what the container runtime has to do for one Pod, and builds the requests.
//
// It has two parts, and neither of them calls the runtime:
//
//   - Decisions: [ComputeActions] compares a Pod with its state in the runtime, and returns what to kill, remove and
//     start now, and when to compare again. [TerminationPlan] returns the order in which a Pod's containers stop.
//   - Requests: a [Builder] turns a Pod into the CRI's PodSandboxConfig and ContainerConfig.
//
// The functions in files.go create the files that a container needs beside its volumes (termination message, log
// directory). Only they access the disk.
package kuberuntime
