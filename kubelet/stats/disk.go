package stats

import (
	"context"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/berth-dev/berth/internal/diskusage"
	"github.com/berth-dev/berth/kubelet/eviction"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/volume"
)

// rootfsStats returns what a container has written, and the file system it is on; nil if the runtime has not measured
// it.
func (p *Provider) rootfsStats(u *runtimeapi.FilesystemUsage) *statsapi.FsStats {
	if u.GetTimestamp() <= 0 {
		return nil
	}
	s, err := fileSystem(u.GetFsId().GetMountpoint(), p.deps.Clock.Now())
	if err != nil {
		s = &statsapi.FsStats{}
	}
	s.Time, s.UsedBytes, s.InodesUsed = timestamp(u.Timestamp), optionalUint(u.UsedBytes), optionalUint(u.InodesUsed)
	return s
}

// logUsage measures a container's log files and termination messages.
func (p *Provider) logUsage(ctx context.Context, pod *corev1.Pod, container string) (diskusage.Usage, error) {
	used, err := diskusage.Measure(ctx, filepath.Join(p.deps.LogDir(pod), container), 0)
	if err != nil || p.config.RootDir == "" {
		return used, err
	}
	messages, err := diskusage.Measure(ctx, kuberuntime.TerminationLogDir(volume.PodDir(p.config.RootDir, pod.UID), container), 0)
	return diskusage.Usage{Bytes: used.Bytes + messages.Bytes, Inodes: used.Inodes + messages.Inodes}, err
}

// logStats returns the size of a container's log files; nil if it cannot be measured.
func (p *Provider) logStats(ctx context.Context, pod *corev1.Pod, container string) *statsapi.FsStats {
	if p.deps.LogDir == nil || pod == nil {
		return nil
	}
	dir := filepath.Join(p.deps.LogDir(pod), container)
	s, err := fileSystem(dir, p.deps.Clock.Now())
	if err != nil {
		return nil
	}
	used, err := p.logUsage(ctx, pod, container)
	if err != nil {
		return nil
	}
	s.UsedBytes, s.InodesUsed = nonNegative(used.Bytes), nonNegative(used.Inodes)
	return s
}

// hostsUsage measures the Pod's hosts file, which its containers may fill. root is the kubelet's directory, empty if there is none.
func hostsUsage(ctx context.Context, root string, pod *corev1.Pod) (diskusage.Usage, error) {
	if root == "" {
		return diskusage.Usage{}, nil
	}
	return diskusage.Measure(ctx, kuberuntime.HostsPath(volume.PodDir(root, pod.UID)), 0)
}

// ephemeralStats returns what the Pod uses of the node's own disk: its containers' writable layers and logs, its hosts file, and its
// volumes that are deleted with it.
func (p *Provider) ephemeralStats(ctx context.Context, s *statsapi.PodStats, pod *corev1.Pod) *statsapi.FsStats {
	total, err := fileSystem(p.config.RootDir, p.deps.Clock.Now())
	if err != nil || pod == nil {
		return nil
	}
	total.Time = metav1.NewTime(p.deps.Clock.Now())
	total.UsedBytes, total.InodesUsed = nil, nil
	add := func(part *statsapi.FsStats) {
		if part != nil {
			total.UsedBytes, total.InodesUsed = sum(total.UsedBytes, part.UsedBytes), sum(total.InodesUsed, part.InodesUsed)
		}
	}
	for i := range s.Containers {
		add(s.Containers[i].Rootfs)
		add(s.Containers[i].Logs)
	}
	if hosts, err := hostsUsage(ctx, p.config.RootDir, pod); err == nil {
		add(&statsapi.FsStats{UsedBytes: nonNegative(hosts.Bytes), InodesUsed: nonNegative(hosts.Inodes)})
	}
	local := map[string]bool{}
	for i := range pod.Spec.Volumes {
		local[pod.Spec.Volumes[i].Name] = eviction.IsOnNodeDisk(&pod.Spec.Volumes[i])
	}
	for i := range s.VolumeStats {
		if local[s.VolumeStats[i].Name] {
			add(&s.VolumeStats[i].FsStats)
		}
	}
	return total
}
