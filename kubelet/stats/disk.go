package stats

import (
	"errors"
	"io/fs"
	"path/filepath"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// blockUnit is the unit of st_blocks, whatever the file system's own block size is.
const blockUnit = 512

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

// logStats returns the size of a container's log files; nil if it cannot be measured.
func (p *Provider) logStats(pod *corev1.Pod, container string) *statsapi.FsStats {
	if p.deps.LogDir == nil || pod == nil {
		return nil
	}
	dir := filepath.Join(p.deps.LogDir(pod), container)
	s, err := fileSystem(dir, p.deps.Clock.Now())
	if err != nil {
		return nil
	}
	var bytes, inodes uint64
	err = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // rotated meanwhile
		}
		if err != nil {
			return err
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			bytes, inodes = bytes+uint64(stat.Blocks)*blockUnit, inodes+1
		}
		return nil
	})
	if err != nil {
		return nil
	}
	s.UsedBytes, s.InodesUsed = &bytes, &inodes
	return s
}

// ephemeralStats returns what the Pod uses of the node's own disk: its containers' writable layers and logs, and its
// volumes that are deleted with it.
func (p *Provider) ephemeralStats(s *statsapi.PodStats, pod *corev1.Pod) *statsapi.FsStats {
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
	local := map[string]bool{}
	for i := range pod.Spec.Volumes {
		local[pod.Spec.Volumes[i].Name] = isOnNodeDisk(&pod.Spec.Volumes[i])
	}
	for i := range s.VolumeStats {
		if local[s.VolumeStats[i].Name] {
			add(&s.VolumeStats[i].FsStats)
		}
	}
	return total
}

// isOnNodeDisk reports whether a volume belongs to the Pod alone and is on the disk of the Pods' directories.
func isOnNodeDisk(v *corev1.Volume) bool {
	if v.EmptyDir != nil {
		return v.EmptyDir.Medium == corev1.StorageMediumDefault
	}
	return v.ConfigMap != nil || v.GitRepo != nil // Secrets and tokens are in memory
}
