// Package handoff lets the process that containerd starts be the shim itself: it forks before Go starts, the parent waits, and the
// child goes on as the shim. When the child serves, the parent exits.
//
// containerd waits until the process that it has started ends, so upstream's shims start themselves a second time and exit. A fork
// before Go starts costs next to nothing, and a second start of a Go program some milliseconds for each Pod.
//
// containerd also calls the program after each removal of a container. The shim has left its reply in the bundle then, in deleted.pb, and
// such a call ends before Go starts, too.
//
// Only a program whose last argument is "start" forks. If the child dies early, the parent says so and exits with 1; if the parent is
// killed, the child dies with it.
package handoff
