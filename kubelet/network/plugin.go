package network

// NetworkPlugin is an additional condition for the node's network: while its Status returns an error, the node is not
// ready.
type NetworkPlugin interface {
	// Name identifies the plugin.
	Name() string
	// Status returns nil if the network is ready for Pods. It must not block.
	Status() error
}
