package local

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/berth-dev/berth/volume/mounts"
)

// unmountShared unmounts the file system of a disk where Kubernetes' kubelet, which may have run before, mounts it for all Pods of the node, if
// no Pod uses it any more: the device could not be erased or removed otherwise. This plugin mounts it for each Pod alone.
func (p *Plugin) unmountShared(ctx context.Context, dir string) error {
	name := filepath.Base(dir)
	unlock, err := p.busy.Lock(ctx, name)
	if err != nil {
		return fmt.Errorf("wait for another pod's mount of local volume %q: %w", name, err)
	}
	defer unlock()
	used, err := p.isUsedByOthers(dir)
	if err != nil || used {
		return err
	}
	root := filepath.Dir(podsDir(dir))
	if err := mounts.UnmountAndRemoveDir(ctx, p.mounter, filepath.Join(root, "plugins", Name, "mounts", name)); err != nil {
		return fmt.Errorf("unmount the disk of local volume %q: %w", name, err)
	}
	return nil
}
