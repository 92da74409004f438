// Package prober runs the startup, liveness and readiness probes of a node's containers and keeps their results.
//
// One worker runs per container ID and probe type, from the container's start until its end, with one timer. The
// startup probe runs first; the other two start when it has passed.
//
// A container that starts is probed early: until its first success a startup or readiness probe runs after a few
// milliseconds and then at doubling intervals up to its period. These early probes can only succeed. A failure counts,
// with its event, once a period, so that the threshold has the meaning that the API defines.
package prober
