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
)

// containerOptions converts the configuration that the runtime would get for the container.
func (k *Kubelet) containerOptions(pod *corev1.Pod, c *corev1.Container, podIP string,
) (*container.RunContainerOptions, error) {
	var ips []string
	if podIP != "" {
		ips = []string{podIP}
	}
	config, err := k.parts.RuntimeHelper.Container(k.ctx, podworker.ContainerRequest{
		Pod: pod, Start: kuberuntime.Start{Container: c}, PodIPs: ips,
	})
	if err != nil {
		return nil, fmt.Errorf("generate options of container %q of Pod %s/%s: %w", c.Name, pod.Namespace, pod.Name, err)
	}
	out := &container.RunContainerOptions{
		Envs: config.Envs, Mounts: config.Mounts, Devices: config.Devices, CDIDevices: config.CDIDevices,
		PodContainerDir: filepath.Join(k.GetPodDir(pod.UID), "containers", c.Name),
		CgroupParent:    k.parts.Cgroups.CgroupParent(pod),
		ReadOnly:        c.SecurityContext != nil && ptr.Deref(c.SecurityContext.ReadOnlyRootFilesystem, false),
	}
	if !pod.Spec.HostNetwork {
		if out.Hostname, _, err = network.Hostname(pod, k.config.DNS.ClusterDomain); err != nil {
			return nil, err
		}
	}
	return out, nil
}
