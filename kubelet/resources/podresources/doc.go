// Package podresources serves the podresources API on a socket of the node: monitoring agents and other programs read there which
// devices, CPUs and memory containers have.
package podresources
