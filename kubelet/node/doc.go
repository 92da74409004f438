// Package node keeps the Node object of this machine: registered, its status true, its lease renewed.
//
// The status is computed when something changes and written when it differs from what the API server has; a slow
// repetition proves that the node agent lives on. The lease is the heartbeat, and has a client of its own.
package node
