// Package pluginmanager finds the kubelet's plugins: each creates a socket in a directory, returns what it is there,
// and is passed to the handler of its type.
package pluginmanager
