package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/hold"
)

// A block volume PV of a Pod UID has these places below blockDir, which are upstream's:
//
//	staging/PV          what the driver stages on
//	publish/PV/UID      what the driver publishes: a device, or a file that a device is bound on
//	PV/dev/UID          the hold of it (see package hold)
//	PV/data             the data file
//
// The link in the Pod's directory, by which all of this is found, is made first and removed last.

func (p *Plugin) blockDataDir(pv string) string { return filepath.Join(p.blockDir(), pv, "data") }
func (p *Plugin) blockTarget(pv, uid string) string {
	return filepath.Join(p.blockDir(), "publish", pv, uid)
}
func (p *Plugin) blockHold(pv, uid string) string { return filepath.Join(p.blockDir(), pv, "dev", uid) }

// Map implements volume.BlockMapper.
func (p *Plugin) Map(ctx context.Context, req volume.Request) (volume.Mount, error) {
	pv, uid := req.Spec.DirName(), string(req.Pod.UID)
	target := p.blockTarget(pv, uid)
	b, err := p.prepare(ctx, req, target)
	if err != nil {
		return volume.Mount{}, err
	}
	if !b.source.block {
		return volume.Mount{}, fmt.Errorf("map volume %q: its volumeMode is not Block", pv)
	}
	before, err := p.layOut(ctx, req.Dir, b, pv, uid)
	if err != nil {
		return volume.Mount{}, err
	}
	if err := b.publish(ctx); err != nil {
		mounted, _ := p.deps.Mounter.IsMountPoint(target)
		err = outcome(err, before, mounted)
		if !volume.IsUncertain(err) {
			err = errors.Join(err, p.dropDevice(context.WithoutCancel(ctx), req.Dir, pv, uid))
		}
		return volume.Mount{}, err
	}
	var stat unix.Stat_t
	if err := unix.Stat(target, &stat); err != nil {
		return volume.Mount{}, volume.Uncertain(fmt.Errorf("csi driver %s: NodePublishVolume of volume %q: "+
			"it succeeded but the target is not there: %w", b.source.driver, pv, err))
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFBLK {
		return volume.Mount{}, volume.Uncertain(fmt.Errorf("csi driver %s: NodePublishVolume of volume %q: "+
			"it succeeded but the target is no block device", b.source.driver, pv))
	}
	if err := p.holder.Hold(ctx, target, p.blockHold(pv, uid)); err != nil {
		return volume.Mount{}, volume.Uncertain(fmt.Errorf("map volume %q: %w", pv, err))
	}
	return volume.Mount{Path: target, ReadOnly: b.call.Readonly}, nil
}

// layOut makes what must be there before the driver is called: the data file, then the link by which Unmap is found. It
// reports whether the link was there before. A device that is held although the driver does not publish it any more is
// released: it may be in the driver's way.
func (p *Plugin) layOut(ctx context.Context, dir string, b *publication, pv, uid string) (before bool, err error) {
	data, target := p.blockDataDir(pv), p.blockTarget(pv, uid)
	for _, parent := range []string{data, filepath.Dir(target)} {
		if err := os.MkdirAll(parent, 0o750); err != nil {
			return false, fmt.Errorf("make directory of volume %q: %w", pv, err)
		}
	}
	if _, err := save(data, p.dataOf(b.source, b.attached)); err != nil {
		return false, err
	}
	if before, err = hold.Link(target, dir); err != nil {
		return before, fmt.Errorf("link volume %q: %w", pv, err)
	}
	if err := p.holder.ReleaseOther(ctx, target, p.blockHold(pv, uid)); err != nil {
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
	// First: the driver may detach the device as soon as it is no longer published.
	if err := p.holder.Release(ctx, p.blockHold(pv, uid)); err != nil {
		return fmt.Errorf("unmap volume %q: %w", pv, err)
	}
	data, err := load(p.blockDataDir(pv))
	if err == nil {
		err = p.unpublish(ctx, data, p.blockTarget(pv, uid))
	}
	if err != nil && !errors.Is(err, errNoData) {
		return err
	}
	return p.removeDevice(dir, pv, uid)
}

// dropDevice removes what belongs to one Pod's device, which the driver certainly does not publish.
func (p *Plugin) dropDevice(ctx context.Context, dir, pv, uid string) error {
	if err := p.holder.Release(ctx, p.blockHold(pv, uid)); err != nil {
		return fmt.Errorf("unmap volume %q: %w", pv, err)
	}
	return p.removeDevice(dir, pv, uid)
}

// removeDevice removes what belongs to one Pod's device, which is no longer held. The data file goes when the device is
// unstaged.
func (p *Plugin) removeDevice(dir, pv, uid string) error {
	target := p.blockTarget(pv, uid)
	if err := p.refuseMountPoint(target); err != nil {
		return err
	}
	// The link in the Pod's directory goes last, for it is what is looked for.
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

// releaseAll releases the volume for all Pods. There are none any more, but somebody may have removed their directories
// by hand, by which their holds would have been found.
func (p *Plugin) releaseAll(ctx context.Context, pv string) error {
	dir := p.blockHold(pv, "")
	pods, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("list holds of volume %q: %w", pv, err)
	}
	for _, pod := range pods {
		if err := p.holder.Release(ctx, filepath.Join(dir, pod.Name())); err != nil {
			return fmt.Errorf("release volume %q: %w", pv, err)
		}
	}
	return nil
}

// escapeGlob quotes what filepath.Match would take for a pattern.
func escapeGlob(path string) string {
	var quoted []byte
	for i := range len(path) {
		switch path[i] {
		case '*', '?', '[', '\\':
			quoted = append(quoted, '\\')
		}
		quoted = append(quoted, path[i])
	}
	return string(quoted)
}
