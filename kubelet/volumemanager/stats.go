package volumemanager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/diskusage"
	"github.com/berth-dev/berth/volume"
)

// Stats returns the usage of the Pod's volumes that are set up, by their names in the Pod: from the plugin if it is a
// volume.StatsProvider, otherwise from the file system. A volume that cannot be measured is omitted and named by the
// error.
func (m *Manager) Stats(ctx context.Context, uid types.UID) (map[string]volume.Stats, error) {
	m.mu.Lock()
	volumes := make(map[string]*mountedVolume)
	if state, ok := m.pods[uid]; ok {
		for name, mounted := range state.mounted {
			volumes[name] = mounted
		}
	}
	m.mu.Unlock()
	all := make(map[string]volume.Stats, len(volumes))
	var errs []error
	for name, mounted := range volumes {
		stats, err := m.volumeStats(ctx, mounted)
		if err != nil {
			errs = append(errs, fmt.Errorf("measure volume %q of pod %s: %w", name, uid, err))
			continue
		}
		if stats != nil {
			all[name] = *stats
		}
	}
	return all, errors.Join(errs...)
}

// LocalUsage returns what the Pod's volumes on the node's own disk occupy, by their names in the Pod. A volume that is being
// removed may be missing; one that cannot be measured is omitted and named by the error.
func (m *Manager) LocalUsage(ctx context.Context, uid types.UID) (map[string]diskusage.Usage, error) {
	m.mu.Lock()
	state := m.pods[uid]
	m.mu.Unlock()
	if state == nil {
		return map[string]diskusage.Usage{}, nil
	}
	_, volumes := m.mountedOf(state, (*mountedVolume).onNodeDisk)
	all := make(map[string]diskusage.Usage, len(volumes))
	var errs []error
	for name, mounted := range volumes {
		used, err := m.measureUsage(ctx, mounted, 0)
		if err != nil {
			errs = append(errs, fmt.Errorf("volume %q of pod %s: %w", name, uid, err))
			continue
		}
		all[name] = used
	}
	return all, errors.Join(errs...)
}

// volumeStats measures one volume, within statsWait. It returns nil for a block device whose StatsProvider knows nothing of it. A volume on
// the node's disk may have so many files that it takes longer to count them: until that has ended, it has the usage that was counted before.
func (m *Manager) volumeStats(ctx context.Context, mounted *mountedVolume) (*volume.Stats, error) {
	stats, err := m.measureOnce(ctx, mounted)
	if errors.Is(err, errNoResponse) {
		if before := mounted.usage.reported.Load(); before != nil {
			return before, nil
		}
	}
	return stats, err
}

// measureOnce is volumeStats without what was measured before.
func (m *Manager) measureOnce(ctx context.Context, mounted *mountedVolume) (*volume.Stats, error) {
	return m.measurements.measure(ctx, measuredVolume(mounted), func(ctx context.Context) (*volume.Stats, error) {
		began := m.clock.Now()
		stats, source, err := measureVolume(ctx, mounted)
		if err != nil || stats == nil || m.config.UsageMaxAge < 0 || !mounted.onNodeDisk() {
			if source != "" {
				m.measurements.observe(source, m.clock.Since(began))
			}
			return stats, err
		}
		used, err := m.measureUsage(ctx, mounted, m.config.UsageMaxAge)
		stats.Used, stats.InodesUsed = used.Bytes, used.Inodes
		if err == nil {
			mounted.usage.reported.Store(stats)
		}
		return stats, err
	})
}

// measureVolume asks the plugin of a volume, or else its file system. source is what the volume is measured with, empty if with nothing.
func measureVolume(ctx context.Context, mounted *mountedVolume) (stats *volume.Stats, source string, err error) {
	if provider, ok := mounted.plugin.(volume.StatsProvider); ok {
		stats, err := provider.Stats(ctx, mounted.Spec, mounted.Path)
		switch {
		case stats != nil || err != nil:
			return stats, cmp.Or(mounted.Spec.Driver(), mounted.plugin.Name()), err
		case mounted.Block:
			return nil, "", nil
		}
	}
	if mounted.Block {
		stats, err := measureDevice(mounted.Path)
		return stats, sourceDevice, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(mounted.Path, &fs); err != nil {
		return nil, sourceFileSystem, &os.PathError{Op: "statfs", Path: mounted.Path, Err: err}
	}
	return &volume.Stats{
		Capacity: int64(fs.Blocks) * fs.Bsize, Available: int64(fs.Bavail) * fs.Bsize,
		Used:   int64(fs.Blocks-fs.Bfree) * fs.Bsize,
		Inodes: int64(fs.Files), InodesFree: int64(fs.Ffree), InodesUsed: int64(fs.Files - fs.Ffree),
	}, sourceFileSystem, nil
}

// measureDevice returns the size of a block device; only what writes to it knows how much of it is used.
func measureDevice(path string) (*volume.Stats, error) {
	device, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer device.Close()
	size, err := device.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	return &volume.Stats{Capacity: size}, nil
}
