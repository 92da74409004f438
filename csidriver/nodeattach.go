package csidriver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-dev/berth/internal/atomicfile"
)

// nodeMark is the path of the file that marks a volume that the node service attached, because its CSIDriver asks for no attachment: only
// the node service detaches it. A volume that is published by the controller service is detached by that.
type nodeMark string

// nodeMark returns the mark of a volume. The caller holds the id.
func (d *Driver) nodeMark(id string) nodeMark {
	return nodeMark(filepath.Join(d.store.dir(id), "attached-by-node"))
}

func (m nodeMark) isSet() (bool, error) {
	_, err := os.Lstat(string(m))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look whether the node attached a volume: %w", err)
	}
	return true, nil
}

func (m nodeMark) set() error {
	if err := atomicfile.Write(string(m), nil, 0o600); err != nil {
		return fmt.Errorf("mark a volume as attached by the node: %w", err)
	}
	return nil
}

func (m nodeMark) clear() error {
	if err := removeMark(string(m)); err != nil {
		return fmt.Errorf("unmark a volume that the node attached: %w", err)
	}
	return nil
}

// markAttachedByNode marks the volume if it is not published, before it is attached: a driver that ends in between leaves no device
// attached for ever. A volume that is attached already belongs to whoever attached it. The caller holds the id.
func (d *Driver) markAttachedByNode(id string, publishContext map[string]string) error {
	if d.config.Shared || publishContext[ContextReadonly] != "" {
		return nil
	}
	device, err := d.loops.find(d.store.image(id))
	if err != nil || device != nil {
		return err
	}
	return d.nodeMark(id).set()
}

// detachUnpublished detaches a volume that the node service attached and that nothing here has mounted any more. The caller holds the id.
func (d *Driver) detachUnpublished(id string) error {
	if marked, err := d.nodeMark(id).isSet(); err != nil || !marked {
		return err
	}
	device, err := d.loops.find(d.store.image(id))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if device != nil {
		if detached, err := d.detachUnmounted(device); err != nil || !detached {
			return err
		}
		d.logger.Info("detached volume, which the node attached", "volume", id, "device", device.path)
	}
	return d.nodeMark(id).clear()
}
