// Package stats tells what the node, its Pods and their containers use, when somebody asks: it reads the runtime's
// figures and /proc at that moment and keeps nothing but the last reading of the node's CPU time.
package stats
