// Package csinode publishes the CSI drivers of this node: in its CSINode object, and in annotations and labels of its
// Node. It registers the drivers that package pluginmanager finds.
package csinode
