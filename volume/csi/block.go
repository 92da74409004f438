package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/globs"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/blockpin"
)

// A block volume PV of a Pod UID has these paths below blockDir, which are those of Kubernetes' kubelet:
//
//	staging/PV          the staging path of the driver
//	publish/PV/UID      the target path of the driver: a device, or a file that a device is bind-mounted on
//	PV/dev/UID          the pin of the device (see package blockpin)
//	PV/data             the directory of the data file
//
// The link in the Pod's directory, by which all of this is found, is created first and removed last.

func (p *Plugin) blockDataDir(pv string) string { return filepath.Join(p.blockDir(), pv, "data") }
func (p *Plugin) blockPublishPath(pv, uid string) string {
	return filepath.Join(p.blockDir(), "publish", pv, uid)
}
func (p *Plugin) blockPinPath(pv, uid string) string {
	return filepath.Join(p.blockDir(), pv, "dev", uid)
}

// Map implements volume.BlockMapper.
func (p *Plugin) Map(ctx context.Context, req volume.Request) (volume.Mount, error) {
	pv, uid := req.Spec.DirName(), string(req.Pod.UID)
	target := p.blockPublishPath(pv, uid)
	b, err := p.prepare(ctx, req, target)
	if err != nil {
		return volume.Mount{}, err
	}
	if !b.source.block {
		return volume.Mount{}, fmt.Errorf("map volume %q: its volumeMode is not Block", pv)
	}
	before, err := p.prepareMap(ctx, req.Dir, b, pv, uid)
	if err != nil {
		return volume.Mount{}, err
	}
	if err := b.publish(ctx); err != nil {
		mounted, _ := p.deps.Mounter.IsMountPoint(target)
		err = classifyError(err, before, mounted)
		if !volume.IsUncertain(err) {
			err = errors.Join(err, p.undoMap(context.WithoutCancel(ctx), req.Dir, pv, uid))
		}
		return volume.Mount{}, err
	}
	var stat unix.Stat_t
	if err := unix.Stat(target, &stat); err != nil {
		return volume.Mount{}, volume.Uncertain(fmt.Errorf("csi driver %s: NodePublishVolume of volume %q: "+
			"it succeeded but the target does not exist: %w", b.source.driver, pv, err))
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFBLK {
		return volume.Mount{}, volume.Uncertain(fmt.Errorf("csi driver %s: NodePublishVolume of volume %q: "+
			"it succeeded but the target is not a block device", b.source.driver, pv))
	}
	if err := p.pinner.Pin(ctx, target, p.blockPinPath(pv, uid)); err != nil {
		return volume.Mount{}, volume.Uncertain(fmt.Errorf("map volume %q: %w", pv, err))
	}
	return volume.Mount{Path: target, ReadOnly: b.request.Readonly}, nil
}

// prepareMap creates what must exist before the driver is called: the data file, then the link by which Unmap finds
// the volume. It reports whether the link existed before. A device that is pinned although the driver does not
// publish it any more is unpinned: the pin may prevent the driver from publishing it again.
func (p *Plugin) prepareMap(ctx context.Context, dir string, b *publishCall, pv, uid string) (before bool, err error) {
	data, target := p.blockDataDir(pv), p.blockPublishPath(pv, uid)
	for _, parent := range []string{data, filepath.Dir(target)} {
		if err := os.MkdirAll(parent, 0o750); err != nil {
			return false, fmt.Errorf("create directory of volume %q: %w", pv, err)
		}
	}
	if _, err := p.saveData(data, p.dataOf(b.source, b.attached)); err != nil {
		return false, err
	}
	if before, err = blockpin.Symlink(target, dir); err != nil {
		return before, fmt.Errorf("link volume %q: %w", pv, err)
	}
	if err := p.pinner.UnpinOther(ctx, target, p.blockPinPath(pv, uid)); err != nil {
		return before, fmt.Errorf("map volume %q: %w", pv, err)
	}
	return before, nil
}

// Unmap implements volume.BlockMapper.
func (p *Plugin) Unmap(ctx context.Context, dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	pv := filepath.Base(dir)
	uid := filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(dir))))
	// Before the call: the driver may detach the device as soon as it is no longer published.
	if err := p.pinner.Unpin(ctx, p.blockPinPath(pv, uid)); err != nil {
		return fmt.Errorf("unmap volume %q: %w", pv, err)
	}
	data, err := loadData(p.blockDataDir(pv))
	if err == nil {
		err = p.unpublish(ctx, data, p.blockPublishPath(pv, uid))
	}
	if err != nil && !errors.Is(err, errNoData) {
		return err
	}
	return p.removeMapFiles(dir, pv, uid)
}

// undoMap unpins one Pod's device, which the driver certainly does not publish, and removes its files.
func (p *Plugin) undoMap(ctx context.Context, dir, pv, uid string) error {
	if err := p.pinner.Unpin(ctx, p.blockPinPath(pv, uid)); err != nil {
		return fmt.Errorf("unmap volume %q: %w", pv, err)
	}
	return p.removeMapFiles(dir, pv, uid)
}

// removeMapFiles removes the files of one Pod's device, which is no longer pinned. The data file is removed when the
// device is unstaged.
func (p *Plugin) removeMapFiles(dir, pv, uid string) error {
	target := p.blockPublishPath(pv, uid)
	if err := p.checkNotMounted(target); err != nil {
		return err
	}
	// The link in the Pod's directory is removed last, because the volume is found by it.
	for _, path := range []string{target, dir} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove device of volume %q: %w", pv, err)
		}
	}
	if err := unix.Rmdir(filepath.Dir(target)); err != nil && err != unix.ENOENT && err != unix.ENOTEMPTY {
		return fmt.Errorf("remove device directory of volume %q: %w", pv, err)
	}
	return nil
}

// mappedData returns, by their devices, the data files of block volumes beside their directories. Kubernetes' kubelet writes no
// other data file of a block device that it has staged.
func (p *Plugin) mappedData() (map[string]*volumeData, error) {
	files, err := filepath.Glob(filepath.Join(globs.Escape(p.blockDir()), "*", "data", dataFile))
	if err != nil {
		return nil, fmt.Errorf("list mapped volumes: %w", err)
	}
	mapped := make(map[string]*volumeData, len(files))
	for _, file := range files {
		dir := filepath.Dir(file)
		data, err := loadData(dir)
		if err == nil && dir != p.blockDataDir(data.SpecVolID) {
			err = fmt.Errorf("it is the file of volume %q", data.SpecVolID)
		}
		if err != nil {
			p.deps.Logger.Error("cannot read the data file of a mapped volume; the others are not affected", "file", file, "error", err)
			continue
		}
		data.VolumeMode = "Block"
		mapped[deviceName(data.DriverName, data.VolumeHandle)] = data
	}
	return mapped, nil
}

// stagedData returns the data of a device that is staged. The error wraps errNoData if there is none.
func (p *Plugin) stagedData(driver, handle string) (*volumeData, error) {
	data, err := loadData(p.deviceDir(driver, handle))
	if !errors.Is(err, errNoData) {
		return data, err
	}
	mapped, listErr := p.mappedData()
	if listErr != nil {
		return nil, listErr
	}
	if data := mapped[deviceName(driver, handle)]; data != nil {
		return data, nil
	}
	return nil, err
}
