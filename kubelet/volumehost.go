package kubelet

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"
	mount "k8s.io/mount-utils"

	"github.com/berth-dev/berth/kubelet/secret"
	kubeio "github.com/berth-dev/berth/kubelet/util/io"
	"github.com/berth-dev/berth/kubelet/volume"
)

// volumeHost is the Kubelet as volume plugins see it.
type volumeHost struct {
	*Kubelet
	secrets secret.Manager
}

var _ volume.VolumeHost = volumeHost{}

// GetSecret implements volume.VolumeHost.
func (h volumeHost) GetSecret(namespace, name string) (*corev1.Secret, error) {
	if h.secrets != nil {
		return h.secrets.GetSecret(namespace, name)
	}
	return h.parts.Objects.Secret(h.ctx, namespace, name)
}

// GetMounter implements volume.VolumeHost.
func (h volumeHost) GetMounter() mount.Interface {
	if h.injected.Mounter != nil {
		return h.injected.Mounter
	}
	return mount.New("")
}

// GetWriter implements volume.VolumeHost.
func (h volumeHost) GetWriter() kubeio.Writer {
	if h.injected.Writer != nil {
		return h.injected.Writer
	}
	return &kubeio.StdWriter{}
}

// GetCloudProvider implements volume.VolumeHost.
func (h volumeHost) GetCloudProvider() cloudprovider.Interface { return h.injected.Cloud }

// NewInitializedVolumePluginMgr returns a manager of the plugins and initializes each with the Kubelet as its host. A nil
// secretManager is the Kubelet's own. Two plugins of one name are an error.
func NewInitializedVolumePluginMgr(kubelet *Kubelet, secretManager secret.Manager, plugins []volume.VolumePlugin,
) (*volume.VolumePluginMgr, error) {
	if kubelet == nil {
		return nil, fmt.Errorf("create volume plugin manager: a kubelet is required")
	}
	return volume.NewVolumePluginMgr(volumeHost{kubelet, secretManager}, plugins)
}
