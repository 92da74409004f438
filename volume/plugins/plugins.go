// Package plugins assembles the volume plugins of Berth in one registry.
package plugins

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/csi"
	"github.com/berth-dev/berth/volume/emptydir"
	"github.com/berth-dev/berth/volume/hostpath"
	"github.com/berth-dev/berth/volume/iscsi"
	"github.com/berth-dev/berth/volume/local"
	"github.com/berth-dev/berth/volume/mounts"
	"github.com/berth-dev/berth/volume/nfs"
	"github.com/berth-dev/berth/volume/projected"
)

// Deps holds what the plugins use. Objects and Tokens are required.
type Deps struct {
	// Objects and Tokens provide the content of volumes that are made of API objects.
	Objects projected.Objects
	Tokens  projected.Tokens
	// TrustBundles and Certificates may be nil, where there is no API server.
	TrustBundles projected.TrustBundles
	Certificates projected.Certificates
	// Mounter defaults to system calls.
	Mounter mounts.Mounter
	// NodeAllocatable returns the node's allocatable resources. Nil means that they are unknown.
	NodeAllocatable func() corev1.ResourceList
	// ProjectQuotas is that of emptydir.Deps.
	ProjectQuotas bool
	// ISCSI is the plugin for iSCSI disks. If it is nil, they are not supported.
	ISCSI *iscsi.Plugin
	// CSI is the plugin for CSI drivers. If it is nil, CSI volumes are not supported.
	CSI *csi.Plugin
	// Others are plugins of the caller. A volume that one of them supports is theirs, and one with the name of a plugin of
	// Berth takes its place.
	Others []volume.Plugin
}

// New returns a registry of all plugins.
func New(deps Deps) (*volume.Registry, error) {
	if deps.Mounter == nil {
		deps.Mounter = mounts.Syscalls{}
	}
	fromObjects, err := projected.New(projected.Deps{
		Objects: deps.Objects, Tokens: deps.Tokens, TrustBundles: deps.TrustBundles, Certificates: deps.Certificates,
		Mounter: deps.Mounter, NodeAllocatable: deps.NodeAllocatable,
	})
	if err != nil {
		return nil, err
	}
	own := []volume.Plugin{
		emptydir.New(emptydir.Deps{Mounter: deps.Mounter, NodeAllocatable: deps.NodeAllocatable, ProjectQuotas: deps.ProjectQuotas}),
		hostpath.New(deps.Mounter),
		local.New(deps.Mounter),
		nfs.New(nfs.Deps{Mounter: deps.Mounter}, nfs.Config{}),
	}
	for _, plugin := range fromObjects {
		own = append(own, plugin)
	}
	if deps.ISCSI != nil {
		own = append(own, deps.ISCSI)
	}
	if deps.CSI != nil {
		own = append(own, deps.CSI)
	}
	own = slices.DeleteFunc(own, func(plugin volume.Plugin) bool {
		return slices.ContainsFunc(deps.Others, func(other volume.Plugin) bool { return other.Name() == plugin.Name() })
	})
	return volume.NewRegistry(slices.Concat(deps.Others, own)...)
}
