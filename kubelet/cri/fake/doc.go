// Package fake is a container runtime in memory, for tests of what speaks the Container Runtime Interface.
//
// It keeps the promises that the node agent relies on: names with an attempt are reserved, a sandbox has to be ready
// for a container to be made in it, stops are idempotent, events are sent for each change. It counts calls, and can
// be told to fail the next call of a method.
package fake
