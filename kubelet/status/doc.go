// Package status computes the status of Pods and writes it to the API server.
//
// [Compute] is a pure function of the Pod, of its state in the runtime and of the results of probes and failed steps.
// [Writer] writes the result when it changes, retries until the API server has it, writes it again when another client
// has edited it, and deletes the Pod's object when nothing of the Pod is left on the node. [Broadcaster] passes changes
// of statuses to subscribers.
package status
