package containermetrics

import (
	"context"
	"fmt"

	v1 "github.com/google/cadvisor/info/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/container"
)

// labelled is what is known of a cgroup beside its usage.
type labelled struct {
	id, image string
	labels    map[string]string
	// ownNetwork is set for the sandbox of a Pod that is not in the node's network.
	ownNetwork bool
	// written is what a container has written to its file system, nil if the runtime has not measured it.
	written *runtimeapi.FilesystemUsage
}

// describe sets what is known of a cgroup.
func (k *labelled) describe(info *v1.ContainerInfo) {
	info.Spec.Labels, info.Spec.Image = k.labels, k.image
	if k.id != "" {
		info.Id, info.Aliases = k.id, []string{k.id, info.Name}
	}
}

// running lists what runs on the node: sandboxes and containers by each name that their cgroups may have, and Pods by the path of theirs.
func (e *Exporter) running(ctx context.Context) (byName, byPath map[string]*labelled, err error) {
	pods, byPath := map[types.UID]*corev1.Pod{}, map[string]*labelled{}
	for _, pod := range e.deps.Pods() {
		pods[pod.UID] = pod
		byPath[e.deps.Cgroups.CgroupParent(pod)] = &labelled{labels: map[string]string{
			container.PodNameLabel: pod.Name, container.PodNamespaceLabel: pod.Namespace,
		}}
	}
	byName = map[string]*labelled{}
	add := func(k *labelled) {
		for _, name := range cm.ContainerCgroups(k.id) {
			byName[name] = k
		}
	}
	sandboxes, err := e.deps.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
		State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
	}})
	if err != nil {
		return nil, nil, fmt.Errorf("list sandboxes: %w", err)
	}
	images := e.images.read(ctx, e, sandboxes.Items)
	for _, s := range sandboxes.Items {
		pod := pods[types.UID(s.Labels[container.PodUIDLabel])]
		add(&labelled{id: s.Id, image: images[s.Id], labels: s.Labels, ownNetwork: pod != nil && !pod.Spec.HostNetwork})
	}
	containers, err := e.containers(ctx, pods)
	if err != nil {
		return nil, nil, err
	}
	for _, one := range containers {
		add(one)
	}
	return byName, byPath, nil
}

// containers lists those that run.
func (e *Exporter) containers(ctx context.Context, pods map[types.UID]*corev1.Pod) ([]*labelled, error) {
	containers, err := e.deps.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	stats, err := e.deps.Runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
	if err != nil {
		return nil, fmt.Errorf("list container statistics of container runtime: %w", err)
	}
	written := map[string]*runtimeapi.FilesystemUsage{}
	for _, one := range stats.Stats {
		if one.GetWritableLayer().GetTimestamp() > 0 {
			written[one.GetAttributes().GetId()] = one.WritableLayer
		}
	}
	out := make([]*labelled, 0, len(containers.Containers))
	for _, c := range containers.Containers {
		out = append(out, &labelled{
			id: c.Id, labels: c.Labels, written: written[c.Id],
			image: image(pods[types.UID(c.Labels[container.PodUIDLabel])], c.Labels[container.ContainerNameLabel], c.GetImage().GetImage()),
		})
	}
	return out, nil
}

// image returns the image of a container as its Pod names it, otherwise if that is not known.
func image(pod *corev1.Pod, name, otherwise string) string {
	if pod == nil {
		return otherwise
	}
	if c, _ := podutil.FindContainer(&pod.Spec, name); c != nil && c.Image != "" {
		return c.Image
	}
	return otherwise
}
