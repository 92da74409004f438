// Package logs reads what containers have written: their log files in the runtime's format, for kubectl logs, and their
// termination messages.
//
// A follower waits for file system events and for the end of its container; it never polls. The reader of
// k8s.io/cri-client is not used because it polls once a second and needs a RuntimeService.
package logs
