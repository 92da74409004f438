package volumemanager

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/volume"
)

// unpinOrphaned releases block devices that are held for Pods that are gone and of which nothing is on disk any more. No
// process leaves such, wherever it is killed, but somebody who removes the directory of a Pod by hand does.
func (m *Manager) unpinOrphaned(ctx context.Context, keep func(types.UID) bool) error {
	held, err := m.pinner.ListBelow(m.config.RootDir)
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range held {
		uid := types.UID(filepath.Base(path))
		_, err := os.Lstat(volume.PodDevicesDir(m.config.RootDir, uid))
		if keep(uid) || !errors.Is(err, os.ErrNotExist) {
			continue
		}
		m.logger.Warn("a block device is still held for a pod whose directory is gone, releasing it", "uid", uid, "path", path)
		errs = append(errs, m.pinner.Unpin(ctx, path))
	}
	return errors.Join(errs...)
}
