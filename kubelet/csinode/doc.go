// Package csinode tells the API server which CSI drivers this node has: in its CSINode object, and in annotations and
// labels of its Node. It takes drivers on that package pluginmanager finds.
package csinode
