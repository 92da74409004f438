package csidriver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-dev/berth/internal/filecopy"
)

// CreateSnapshot implements csi.ControllerServer. A mounted filesystem is frozen meanwhile, so that the snapshot is
// complete; where the images' filesystem has no reflinks, that lasts as long as copying takes.
func (d *Driver) CreateSnapshot(
	ctx context.Context, req *csi.CreateSnapshotRequest,
) (*csi.CreateSnapshotResponse, error) {
	source := req.GetSourceVolumeId()
	switch {
	case req.GetName() == "":
		return nil, missingField("name")
	case source == "":
		return nil, missingField("source_volume_id")
	}
	if err := checkSnapshotParameters(req.GetParameters()); err != nil {
		return nil, err
	}
	id := snapshotID(req.GetName())
	if !isVolumeID(source) {
		// The name may be taken for another source: that comes first, whatever this source is.
		if it, err := d.store.get(id); err == nil {
			return nil, sameSnapshot(it, source)
		}
		return nil, status.Errorf(codes.NotFound, "source_volume_id: volume %q %v", source, errNotFound)
	}
	return run(ctx, d.inflight, []string{id, source}, func(ctx context.Context) (*csi.CreateSnapshotResponse, error) {
		it, err := d.store.get(id)
		switch {
		case err == nil:
			if err = d.store.adopt(it, metadata{Name: req.GetName(), Source: source}); err == nil {
				err = sameSnapshot(it, source)
			}
		case errors.Is(err, errNotFound):
			it, err = d.snapshot(ctx, id, req.GetName(), source)
		}
		if err != nil {
			return nil, grpcError(err)
		}
		return &csi.CreateSnapshotResponse{Snapshot: describeSnapshot(it)}, nil
	})
}

func sameSnapshot(it *item, source string) error {
	if it.Source != source {
		return status.Errorf(codes.AlreadyExists, "snapshot %q exists of volume %q, not of %q", it.Name, it.Source, source)
	}
	return nil
}

func (d *Driver) snapshot(ctx context.Context, id, name, source string) (*item, error) {
	from, err := d.volume(source)
	if err != nil {
		return nil, err
	}
	needed, err := d.store.copyNeeds(from)
	if err != nil {
		return nil, err
	}
	release, err := d.store.reserve(fmt.Sprintf("snapshot %q of volume %q", name, from.Name), needed)
	if err != nil {
		return nil, err
	}
	defer release()
	m := metadata{Name: name, Source: source, Created: time.Now().UTC(), Shares: d.store.reflinks}
	err = d.store.make(id, m, func(image *os.File) error { return d.copyImage(ctx, image, from) })
	if err != nil {
		return nil, err
	}
	d.logger.Info("created snapshot", "snapshot", id, "name", name, "volume", source)
	return d.store.get(id)
}

// DeleteSnapshot implements csi.ControllerServer. Volumes made from the snapshot live on.
func (d *Driver) DeleteSnapshot(
	ctx context.Context, req *csi.DeleteSnapshotRequest,
) (*csi.DeleteSnapshotResponse, error) {
	id := req.GetSnapshotId()
	if id == "" {
		return nil, missingField("snapshot_id")
	}
	if !isSnapshotID(id) {
		return &csi.DeleteSnapshotResponse{}, nil // never was one of ours
	}
	return run(ctx, d.inflight, []string{id}, func(context.Context) (*csi.DeleteSnapshotResponse, error) {
		if it, err := d.store.get(id); err == nil && it.Group != "" {
			return nil, errMember(it)
		}
		if err := d.store.remove(id); err != nil {
			return nil, grpcError(err)
		}
		return &csi.DeleteSnapshotResponse{}, nil
	})
}

// copyImage copies the image's state at one moment into the empty dst. The caller holds the id of the source.
func (d *Driver) copyImage(ctx context.Context, dst *os.File, from *item) (err error) {
	thaw, raw, err := d.quiesceVolume(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, thaw()) }()
	return d.copyQuiet(ctx, dst, from, raw)
}

// quiesceVolume flushes the volume's data to its image and, if it is mounted, freezes its filesystem until thaw is called. raw
// is that of quiesce.
func (d *Driver) quiesceVolume(from *item) (thaw func() error, raw bool, err error) {
	device, err := d.loops.findAny(d.store.image(from.id))
	if err != nil || device == nil || device.readonly {
		return func() error { return nil }, false, err
	}
	return quiesce(device)
}

// copyQuiet copies the image of a volume for which quiesceVolume was called into the empty dst.
func (d *Driver) copyQuiet(ctx context.Context, dst *os.File, from *item, raw bool) error {
	src, err := os.Open(d.store.image(from.id))
	if err != nil {
		return err
	}
	defer src.Close()
	if d.store.reflinks {
		if err := d.store.markShared(from); err != nil {
			return err
		}
	}
	linked, err := filecopy.Reflink(dst, src)
	if err != nil || linked {
		return err
	}
	if raw {
		return status.Errorf(codes.FailedPrecondition, "volume %q is in use as raw block volume, and the filesystem of %q "+
			"has no reflinks: a copy would mix old with new data; stop the Pods that use it first", from.id, d.config.Root)
	}
	if err := filecopy.Sparse(ctx, dst, src); err != nil {
		return fmt.Errorf("copy image: %w", err)
	}
	return nil
}

// quiesce flushes the device's data to the image. raw reports that writes continue, because it is in use as a raw block
// volume.
func quiesce(device *loop) (thaw func() error, raw bool, err error) {
	filesystem, node, err := device.mounts()
	if err != nil {
		return nil, false, err
	}
	if device.detaching {
		unix.Sync() // it may be mounted in another mount namespace
	}
	if len(filesystem) > 0 {
		dir, err := device.openMount(filesystem)
		if err != nil {
			return nil, false, err
		}
		thaw, err = freeze(dir)
		return thaw, false, err
	}
	paths := []string{device.path}
	if device.mapped != "" { // each has a cache of its own, and that of the mapping is written to the device
		paths = []string{filepath.Join(filepath.Dir(device.path), device.mapped), device.path}
	}
	for _, path := range paths {
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return nil, false, err
		}
		if err = errors.Join(file.Sync(), file.Close()); err != nil {
			return nil, false, fmt.Errorf("flush %q: %w", path, err)
		}
	}
	return func() error { return nil }, len(node) > 0, nil
}
