package volumemanager

import (
	"context"
	"errors"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/volume"
)

// operation is a kind of work on a volume, in the words that upstream's metrics have for it: one for volumes that are
// mounted, and one for those that are handed out as block devices.
type operation struct{ mounted, block string }

var (
	measuredMount   = operation{"volume_mount", "map_volume"}     // Stage and SetUp, or Map
	measuredUnmount = operation{"volume_unmount", "unmap_volume"} // TearDown, or Unmap
	measuredUnstage = operation{"unmount_device", "unmap_device"}
	measuredGrowth  = operation{"volume_fs_resize", "volume_fs_resize"}
	measuredGroup   = operation{"volume_apply_access_control", "volume_apply_access_control"}
)

// errPanicked is what an operation is measured with that did not return.
var errPanicked = errors.New("the operation panicked")

// meter tells how long operations take. One that was broken off, because its Pod goes or the process ends, is neither a
// success nor a failure of the storage, and is not told of.
type meter struct {
	clock   clock.PassiveClock
	observe func(plugin, operation string, took time.Duration, err error) // nil is told nothing
}

// run runs one attempt and tells of it. plugin is the full name of the volume's.
func (m meter) run(ctx context.Context, plugin string, kind operation, block bool, op func(context.Context) error) error {
	began, err := m.clock.Now(), errPanicked
	defer func() {
		if err == nil || ctx.Err() == nil {
			m.tell(plugin, kind, block, m.clock.Since(began), err)
		}
	}()
	err = op(ctx)
	return err
}

func (m meter) tell(plugin string, kind operation, block bool, took time.Duration, err error) {
	if m.observe == nil {
		return
	}
	name := kind.mounted
	if block {
		name = kind.block
	}
	m.observe(plugin, name, took, err)
}

// of is the full name of the plugin of a directory that is to be taken down. What is not known of the volume any more,
// because another process has set it up, is left out of it.
func (m *Manager) of(state *podState, plugin volume.Plugin, dir, device string) string {
	if device != "" {
		return volume.QualifiedPluginName(plugin.Name(), m.devices.driverOf(device))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if state != nil {
		for _, mounted := range state.ending {
			if mounted.request.Dir == dir {
				return mounted.Spec.QualifiedPluginName(plugin.Name())
			}
		}
	}
	return plugin.Name()
}
