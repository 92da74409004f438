package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// measureInterval is how often emptyDirs that have a limit are measured, for the kernel tells nobody that a directory
	// has grown.
	measureInterval = 10 * time.Second
	// measureCostFactor bounds what measuring costs: the pause is so many times as long as the measuring took.
	measureCostFactor = 20
	// blockSize is the unit of stat's blocks.
	blockSize = 512
)

// limitedVolume is an emptyDir on disk that may not become larger than its limit.
type limitedVolume struct {
	uid   types.UID
	name  string
	dir   string
	limit int64
	text  string // the limit as the Pod says it
}

// sizeLimitOf returns the limit of a volume that has to be measured. The kernel itself keeps those in memory small.
func sizeLimitOf(uid types.UID, mounted *mountedVolume) (limitedVolume, bool) {
	spec := mounted.Spec
	if spec.PV != nil || spec.Volume == nil || spec.Volume.EmptyDir == nil {
		return limitedVolume{}, false
	}
	source := spec.Volume.EmptyDir
	if source.Medium != corev1.StorageMediumDefault || source.SizeLimit == nil || source.SizeLimit.Sign() <= 0 {
		return limitedVolume{}, false
	}
	return limitedVolume{
		uid: uid, name: spec.Name, dir: mounted.Path, limit: source.SizeLimit.Value(), text: source.SizeLimit.String(),
	}, true
}

// limitedVolumes lists the volumes that have to be measured.
func (m *Manager) limitedVolumes() []limitedVolume {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []limitedVolume
	for uid, state := range m.pods {
		for _, mounted := range state.mounted {
			if limited, ok := sizeLimitOf(uid, mounted); ok {
				all = append(all, limited)
			}
		}
	}
	return all
}

// sizeLimitLoop measures the emptyDirs that have a limit, and tells of Pods that have outgrown one, until ctx ends. It has
// no timer while there are no such volumes.
func (m *Manager) sizeLimitLoop(ctx context.Context) {
	pause := measureInterval
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.measureQueued:
		}
		timer := m.clock.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		}
		began := m.clock.Now()
		volumes := m.limitedVolumes()
		for _, limited := range volumes {
			m.checkLimit(ctx, limited)
		}
		pause = max(measureInterval, measureCostFactor*m.clock.Since(began))
		if len(volumes) > 0 {
			signal(m.measureQueued)
		}
	}
}

func (m *Manager) checkLimit(ctx context.Context, limited limitedVolume) {
	used, err := diskUsage(ctx, limited.dir, limited.limit)
	if err != nil {
		m.logger.Debug("cannot measure emptyDir", "uid", limited.uid, "volume", limited.name, "error", err)
		return
	}
	if used > limited.limit && m.deps.OnSizeLimitExceeded != nil {
		m.deps.OnSizeLimitExceeded(limited.uid, fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", limited.name, limited.text))
	}
}

// diskUsage is how many bytes of the disk the tree takes, files with several names counted once. It stops counting when
// it has passed enough. What is mounted below is not the tree's.
func diskUsage(ctx context.Context, root string, enough int64) (int64, error) {
	var top syscall.Stat_t
	if err := syscall.Lstat(root, &top); err != nil {
		return 0, &os.PathError{Op: "stat", Path: root, Err: err}
	}
	var used int64
	linked := make(map[uint64]struct{})
	err := filepath.WalkDir(root, func(_ string, entry fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // removed meanwhile
			}
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return nil // removed meanwhile
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok || stat.Dev != top.Dev {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if stat.Nlink > 1 && !entry.IsDir() {
			if _, seen := linked[stat.Ino]; seen {
				return nil
			}
			linked[stat.Ino] = struct{}{}
		}
		used += stat.Blocks * blockSize
		if used > enough {
			return fs.SkipAll
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("measure %q: %w", root, err)
	}
	return used, nil
}
