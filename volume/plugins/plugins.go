// Package plugins puts the volume plugins of the house together.
package plugins

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/csi"
	"github.com/berth-dev/berth/volume/emptydir"
	"github.com/berth-dev/berth/volume/hostpath"
	"github.com/berth-dev/berth/volume/local"
	"github.com/berth-dev/berth/volume/mounts"
	"github.com/berth-dev/berth/volume/nfs"
	"github.com/berth-dev/berth/volume/projected"
)

// Deps is what the plugins need between them.
type Deps struct {
	// Mounter mounts. Nil is system calls.
	Mounter mounts.Mounter
	// Objects and Tokens give what volumes of API objects are made of.
	Objects projected.Objects
	Tokens  projected.Tokens
	// NodeAllocatable tells what Pods may use of this node. Nil is unknown.
	NodeAllocatable func() corev1.ResourceList
	// CSI is the plugin for CSI drivers. Nil leaves them out.
	CSI *csi.Plugin
}

// New makes a registry of all plugins.
func New(deps Deps) (*volume.Registry, error) {
	if deps.Mounter == nil {
		deps.Mounter = mounts.Syscalls{}
	}
	content := projected.Deps{
		Objects: deps.Objects, Tokens: deps.Tokens, Mounter: deps.Mounter, NodeAllocatable: deps.NodeAllocatable,
	}
	list := []volume.Plugin{
		emptydir.New(emptydir.Deps{Mounter: deps.Mounter, NodeAllocatable: deps.NodeAllocatable}),
		hostpath.New(deps.Mounter),
		local.New(deps.Mounter),
		nfs.New(nfs.Deps{Mounter: deps.Mounter}),
		projected.NewConfigMap(content),
		projected.NewSecret(content),
		projected.NewDownwardAPI(content),
		projected.NewProjected(content),
	}
	if deps.CSI != nil {
		list = append(list, deps.CSI)
	}
	return volume.NewRegistry(list...)
}
