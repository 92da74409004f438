// Package stats reports what the node, its Pods and their containers use. It reads the runtime's statistics and /proc
// at each request and keeps no state but the last reading of CPU times.
package stats
