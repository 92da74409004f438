// Package fake is an in-memory container runtime for tests of CRI clients.
//
// It behaves as the kubelet expects of a runtime: names with an attempt are reserved, a container needs a ready
// sandbox, stopping is idempotent, and each change emits an event. It counts calls and can be made to fail the next
// call of a method.
package fake
