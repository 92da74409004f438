package stats

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/eviction"
	"github.com/berth-dev/berth/kubelet/eviction/localstorage"
)

// Usage returns what the running Pods use of memory and process IDs and, with disk, of the node's own disks. Volumes that are
// elsewhere are not measured, because their servers may not respond. The error names volumes that could not be measured; all else is known.
func (p *Provider) Usage(ctx context.Context, disk bool) (eviction.Usage, error) {
	resp, err := p.deps.Runtime.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
	if err != nil {
		return nil, fmt.Errorf("list Pod statistics of container runtime: %w", err)
	}
	known := map[types.UID]*corev1.Pod{}
	for _, pod := range p.deps.Pods() {
		known[pod.UID] = pod
	}
	p.podRates.keepOnly(resp.Stats)
	out := eviction.Usage{}
	var errs []error
	for _, sandbox := range resp.Stats {
		uid := sandbox.GetAttributes().GetMetadata().GetUid()
		pod := known[types.UID(uid)]
		if pod == nil {
			continue
		}
		s := p.podStats(sandbox, pod, !disk)
		if process := sandbox.GetLinux().GetProcess(); process != nil {
			s.ProcessStats = &statsapi.ProcessStats{ProcessCount: optionalUint(process.ProcessCount)}
		}
		if disk && p.deps.Volumes != nil {
			s.VolumeStats, err = p.localVolumes(ctx, pod)
			errs = append(errs, err)
		}
		out[uid] = &s
	}
	return out, errors.Join(errs...)
}

// LocalStorage returns what a Pod occupies of the node's disks; without containers only its volumes. The error names what could not
// be measured; all else is known.
func (p *Provider) LocalStorage(ctx context.Context, pod *corev1.Pod, containers bool) (localstorage.Usage, error) {
	out := localstorage.Usage{Volumes: map[string]int64{}, Layers: map[string]int64{}, Logs: map[string]int64{}}
	volumes, failed := p.deps.Volumes.LocalUsage(ctx, pod.UID)
	for name, used := range volumes {
		out.Volumes[name] = used.Bytes
	}
	if !containers {
		return out, failed
	}
	resp, err := p.deps.Runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{Filter: &runtimeapi.ContainerStatsFilter{
		LabelSelector: map[string]string{container.PodUIDLabel: string(pod.UID)},
	}})
	if err != nil {
		return out, errors.Join(failed, fmt.Errorf("list container statistics of container runtime: %w", err))
	}
	for _, one := range resp.Stats {
		out.Layers[one.GetAttributes().GetMetadata().GetName()] += int64(one.GetWritableLayer().GetUsedBytes().GetValue())
	}
	for c := range podutil.Containers(&pod.Spec) {
		used, err := p.logUsage(ctx, pod, c.Name)
		if err != nil {
			return out, errors.Join(failed, err)
		}
		out.Logs[c.Name] = used.Bytes
	}
	hosts, err := hostsUsage(ctx, p.config.RootDir, pod)
	out.Hosts = hosts.Bytes
	return out, errors.Join(failed, err)
}

// localVolumes measures the volumes of a Pod that are on the node's own disk. The error names those that could not be measured.
func (p *Provider) localVolumes(ctx context.Context, pod *corev1.Pod) ([]statsapi.VolumeStats, error) {
	used, err := p.deps.Volumes.LocalUsage(ctx, pod.UID)
	now := metav1.NewTime(p.deps.Clock.Now())
	var out []statsapi.VolumeStats
	for i := range pod.Spec.Volumes {
		if one, ok := used[pod.Spec.Volumes[i].Name]; ok {
			out = append(out, statsapi.VolumeStats{Name: pod.Spec.Volumes[i].Name, FsStats: statsapi.FsStats{
				Time: now, UsedBytes: nonNegative(one.Bytes), InodesUsed: nonNegative(one.Inodes),
			}})
		}
	}
	return out, err
}
