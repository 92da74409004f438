package volumemanager

import (
	"context"
	"errors"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/volume"
)

// opNames is a kind of work on a volume, in the words that upstream's metrics have for it: one for volumes that are
// mounted, and one for those that are handed out as block devices.
type opNames struct{ mounted, block string }

var (
	measuredMount   = opNames{"volume_mount", "map_volume"}     // Stage and SetUp, or Map
	measuredUnmount = opNames{"volume_unmount", "unmap_volume"} // TearDown, or Unmap
	measuredUnstage = opNames{"unmount_device", "unmap_device"}
	measuredGrowth  = opNames{"volume_fs_resize", "volume_fs_resize"}
	measuredGroup   = opNames{"volume_apply_access_control", "volume_apply_access_control"}
)

// errPanicked is what an operation is measured with that did not return.
var errPanicked = errors.New("the operation panicked")

// opMetrics tells how long operations take. One that was broken off, because its Pod goes or the process ends, is neither a
// success nor a failure of the storage, and is not told of.
type opMetrics struct {
	clock   clock.PassiveClock
	observe func(plugin, operation string, took time.Duration, err error) // nil is told nothing
}

// run runs one attempt and tells of it. plugin is the full name of the volume's.
func (m opMetrics) run(ctx context.Context, plugin string, kind opNames, block bool, op func(context.Context) error) error {
	began, err := m.clock.Now(), errPanicked
	defer func() {
		if err == nil || ctx.Err() == nil {
			m.record(plugin, kind, block, m.clock.Since(began), err)
		}
	}()
	err = op(ctx)
	return err
}

func (m opMetrics) record(plugin string, kind opNames, block bool, took time.Duration, err error) {
	if m.observe == nil {
		return
	}
	name := kind.mounted
	if block {
		name = kind.block
	}
	m.observe(plugin, name, took, err)
}

// pluginName is the full name of the plugin of a directory that is to be taken down. What is not known of the volume any more,
// because another process has set it up, is left out of it.
func (m *Manager) pluginName(state *podState, plugin volume.Plugin, dir, device string) string {
	if device != "" {
		return volume.QualifiedPluginName(plugin.Name(), m.devices.driverOf(device))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if state != nil {
		for _, mounted := range state.terminating {
			if mounted.request.Dir == dir {
				return mounted.Spec.QualifiedPluginName(plugin.Name())
			}
		}
	}
	return plugin.Name()
}
