package volume

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	cloudprovider "k8s.io/cloud-provider"
	mount "k8s.io/mount-utils"

	kubeio "github.com/berth-dev/berth/kubelet/util/io"
	core "github.com/berth-dev/berth/volume"
)

// VolumePlugin mounts one kind of volumes.
type VolumePlugin = core.Plugin

// VolumePluginMgr finds the plugin of a volume.
type VolumePluginMgr = core.Registry

// Volume is a mounted volume of a Pod.
type Volume interface {
	// GetPath returns the directory on the node with its content.
	GetPath() string
}

// VolumeHost is the interface of the kubelet to plugins.
type VolumeHost interface {
	// GetPodDir returns the directory of a Pod's state.
	GetPodDir(uid types.UID) string
	// GetHostname returns the node's hostname.
	GetHostname() string
	// GetKubeClient returns the API server's client.
	GetKubeClient() kubernetes.Interface
	// GetSecret returns a Secret.
	GetSecret(namespace, name string) (*corev1.Secret, error)
	// GetMounter returns what mounts and unmounts.
	GetMounter() mount.Interface
	// GetWriter returns what writes files.
	GetWriter() kubeio.Writer
	// GetCloudProvider returns the cloud of the machine, nil if there is none.
	GetCloudProvider() cloudprovider.Interface
}

// Initializer is a VolumePlugin that needs its host. Init is called once, before anything else.
type Initializer interface {
	VolumePlugin
	Init(host VolumeHost) error
}

// NewVolumePluginMgr initializes the plugins and returns a manager of them. Two plugins of one name are an error.
func NewVolumePluginMgr(host VolumeHost, plugins []VolumePlugin) (*VolumePluginMgr, error) {
	if host == nil {
		return nil, errors.New("create volume plugin manager: a host is required")
	}
	registry, err := core.NewRegistry(plugins...)
	if err != nil {
		return nil, err
	}
	for _, plugin := range plugins {
		if initializer, ok := plugin.(Initializer); ok {
			if err := initializer.Init(host); err != nil {
				return nil, fmt.Errorf("initialize volume plugin %q: %w", plugin.Name(), err)
			}
		}
	}
	return registry, nil
}
