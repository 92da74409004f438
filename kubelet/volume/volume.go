package volume

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	core "github.com/berth-dev/berth/volume"
)

// VolumePlugin sets up one kind of volumes.
type VolumePlugin = core.Plugin

// VolumePluginMgr finds the plugin of a volume.
type VolumePluginMgr = core.Registry

// Volume is a volume that is set up for a Pod.
type Volume interface {
	// GetPath is the directory on the node in which its content lies.
	GetPath() string
}

// VolumeHost is the node agent as a plugin sees it.
type VolumeHost interface {
	// GetPodDir is the directory of a Pod's state.
	GetPodDir(uid types.UID) string
	// GetHostname is the node's name for itself.
	GetHostname() string
	// GetKubeClient is the API server's client.
	GetKubeClient() kubernetes.Interface
	// GetSecret finds a Secret.
	GetSecret(namespace, name string) (*corev1.Secret, error)
}

// Initializer is a VolumePlugin that needs its host. Init is called once, before anything else.
type Initializer interface {
	VolumePlugin
	Init(host VolumeHost) error
}

// NewVolumePluginMgr initializes the plugins and makes a manager of them. Two plugins of one name are an error.
func NewVolumePluginMgr(host VolumeHost, plugins []VolumePlugin) (*VolumePluginMgr, error) {
	if host == nil {
		return nil, errors.New("make volume plugin manager: needs a host")
	}
	registry, err := core.NewRegistry(plugins...)
	if err != nil {
		return nil, err
	}
	for _, plugin := range plugins {
		if needy, ok := plugin.(Initializer); ok {
			if err := needy.Init(host); err != nil {
				return nil, fmt.Errorf("initialize volume plugin %q: %w", plugin.Name(), err)
			}
		}
	}
	return registry, nil
}
