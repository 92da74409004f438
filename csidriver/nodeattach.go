package csidriver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-dev/berth/internal/atomicfile"
)

// attachedByNodeName marks a volume that the node service attached, because its CSIDriver asks for no attachment: nobody but the node
// service detaches it. A volume that is published by the controller service is detached by that.
const attachedByNodeName = "attached-by-node"

// markAttachedByNode marks the volume, before it is attached: a driver that ends in between leaves no device that nobody detaches. A volume
// that is attached already belongs to whoever attached it. The caller holds the id.
func (d *Driver) markAttachedByNode(id string, publishContext map[string]string) error {
	if d.config.Shared || publishContext[ContextReadonly] != "" {
		return nil
	}
	device, err := d.loops.find(d.store.image(id))
	if err != nil || device != nil {
		return err
	}
	if err := atomicfile.Write(d.store.attachedByNode(id), nil, 0o600); err != nil {
		return fmt.Errorf("mark volume %q as attached by the node: %w", id, err)
	}
	return nil
}

// isAttachedByNode reports whether the volume has the mark.
func (s *store) isAttachedByNode(id string) (bool, error) {
	_, err := os.Lstat(s.attachedByNode(id))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// unmarkAttachedByNode removes the mark, if there is one. The caller holds the id.
func (s *store) unmarkAttachedByNode(id string) error {
	if marked, err := s.isAttachedByNode(id); err != nil || !marked {
		return err
	}
	if err := os.Remove(s.attachedByNode(id)); err != nil {
		return fmt.Errorf("unmark volume %q, which the node attached: %w", id, err)
	}
	return atomicfile.SyncDir(s.dir(id))
}

func (s *store) attachedByNode(id string) string { return filepath.Join(s.dir(id), attachedByNodeName) }

// detachUnpublished detaches a volume that the node service attached and that nothing here has mounted any more. The caller holds the id.
func (d *Driver) detachUnpublished(id string) error {
	if d.config.Shared || !isVolumeID(id) {
		return nil
	}
	if marked, err := d.store.isAttachedByNode(id); err != nil || !marked {
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
		filesystem, node, err := device.mounts()
		if err != nil || len(filesystem)+len(node) > 0 {
			return err
		}
		if err := d.loops.detach(device); err != nil {
			return err
		}
		d.unlimit(device)
		d.logger.Info("detached volume, which the node attached", "volume", id, "device", device.path)
	}
	return d.store.unmarkAttachedByNode(id)
}
