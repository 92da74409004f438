package network

// NetworkPlugin is one more thing that the node's network needs beside the container runtime's own: as long as its
// Status is an error, the node is not ready.
type NetworkPlugin interface {
	// Name tells it from others.
	Name() string
	// Status is nil if Pods can be connected. It must not block.
	Status() error
}
