// Package prober runs the startup, liveness and readiness probes of a node's containers and keeps their verdicts.
//
// One worker runs per container ID and probe type, from the container's start until its end, with one timer. The
// startup probe goes first; the other two begin when it has passed.
//
// A container that comes up is looked at early: until its first success a startup or readiness probe is tried after
// a few milliseconds and then at doubling distances up to its period. These early looks can only succeed. A failure
// counts, with its event, once a period, so that the threshold keeps the meaning that the API gives it.
package prober
