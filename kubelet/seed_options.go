package kubelet

import (
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/network"
	"github.com/berth-dev/berth/kubelet/podworker"
	"github.com/berth-dev/berth/kubelet/secret"
	"github.com/berth-dev/berth/kubelet/volume"
)

// containerOptions asks the rooms what they would tell the runtime.
func (k *Kubelet) containerOptions(pod *corev1.Pod, c *corev1.Container, podIP string,
) (*container.RunContainerOptions, error) {
	if k.builder.words.Load() == nil {
		k.word(0, false) // not started yet: what the runtime can do is not known
	}
	var ips []string
	if podIP != "" {
		ips = []string{podIP}
	}
	config, err := k.builder.Container(k.face.life, podworker.ContainerRequest{
		Pod: pod, Start: kuberuntime.Start{Container: c}, PodIPs: ips,
	})
	if err != nil {
		return nil, fmt.Errorf("generate options of container %q of pod %s/%s: %w", c.Name, pod.Namespace, pod.Name, err)
	}
	out := &container.RunContainerOptions{
		Envs: config.Envs, Mounts: config.Mounts, Devices: config.Devices, CDIDevices: config.CDIDevices,
		PodContainerDir: filepath.Join(k.GetPodDir(pod.UID), "containers", c.Name),
		CgroupParent:    k.cgroups.CgroupParent(pod),
		ReadOnly:        c.SecurityContext != nil && ptr.Deref(c.SecurityContext.ReadOnlyRootFilesystem, false),
	}
	if !pod.Spec.HostNetwork {
		if out.Hostname, _, err = network.Hostname(pod, k.cfg.ClusterDomain); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// volumeHost is the node agent as volume plugins see it.
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
	return h.objects.Secret(h.face.life, namespace, name)
}

// NewInitializedVolumePluginMgr makes a manager of the plugins and initializes each with the Kubelet as its host. A nil
// secretManager is the Kubelet's own. Two plugins of one name are an error.
func NewInitializedVolumePluginMgr(kubelet *Kubelet, secretManager secret.Manager, plugins []volume.VolumePlugin,
) (*volume.VolumePluginMgr, error) {
	if kubelet == nil {
		return nil, fmt.Errorf("make volume plugin manager: needs a kubelet")
	}
	return volume.NewVolumePluginMgr(volumeHost{kubelet, secretManager}, plugins)
}
