// Package patience lets events go to the API server when the Pods that they tell of have had their turn.
//
// On a small machine the node agent, the container runtime and the API server share a few cores. An event that is
// written while its Pod starts takes time from that start, and nobody acts on it so soon: its own time has whole seconds.
package patience
