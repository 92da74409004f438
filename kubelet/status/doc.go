// Package status says what a Pod's status is, and writes it to the API server.
//
// [Compute] is a pure function of the Pod, of what the runtime holds of it and of what probes and failed steps have
// said. [Writer] sends the result at once when it changes, retries until the API server has it, puts it right when
// somebody else has edited it, and, when all of a Pod is gone from the node, removes the Pod's object.
package status
