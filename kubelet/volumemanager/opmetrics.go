package volumemanager

import (
	"context"
	"errors"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/volume"
)

// opNames are the names of an operation in Kubernetes' metrics: for volumes that are mounted, and for block devices.
type opNames struct{ mounted, block string }

var (
	measuredMount   = opNames{"volume_mount", "map_volume"}     // Stage and SetUp, or Map
	measuredUnmount = opNames{"volume_unmount", "unmap_volume"} // TearDown, or Unmap
	measuredUnstage = opNames{"unmount_device", "unmap_device"}
	measuredExpand  = opNames{"volume_fs_resize", "volume_fs_resize"}
	measuredGroup   = opNames{"volume_apply_access_control", "volume_apply_access_control"}
)

// errPanicked is the recorded result of an operation that did not return.
var errPanicked = errors.New("the operation panicked")

// opMetrics records the duration of operations. An operation that was cancelled, because its Pod ends or the process
// stops, is neither a success nor a failure of the storage and is not recorded.
type opMetrics struct {
	clock   clock.PassiveClock
	observe func(plugin, operation string, took time.Duration, err error)
}

// measure runs one attempt and records it. plugin is the qualified name of the volume's plugin.
func (m opMetrics) measure(
	ctx context.Context, plugin string, names opNames, block bool, op func(context.Context) error,
) error {
	began, err := m.clock.Now(), errPanicked
	defer func() {
		if err == nil || ctx.Err() == nil {
			m.record(plugin, names, block, m.clock.Since(began), err)
		}
	}()
	err = op(ctx)
	return err
}

// measureUnstage is measure for a call of Unstage.
func (m opMetrics) measureUnstage(ctx context.Context, plugin string, block bool, op func(context.Context) error) error {
	return m.measure(ctx, plugin, measuredUnstage, block, op)
}

func (m opMetrics) record(plugin string, names opNames, block bool, took time.Duration, err error) {
	name := names.mounted
	if block {
		name = names.block
	}
	m.observe(plugin, name, took, err)
}

// pluginName returns the qualified name of the plugin of a directory that is to be unmounted. It lacks the driver if that
// is unknown, because an earlier process has set up the volume. state may be nil.
func (m *Manager) pluginName(state *podState, plugin volume.Plugin, dir, device string) string {
	if device != "" {
		return volume.QualifiedPluginName(plugin.Name(), m.devices.Driver(device))
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
