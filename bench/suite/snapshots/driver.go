package snapshots

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/csidriver"
)

// measureDriver runs a driver whose disks are below dir, and measures its calls.
func measureDriver(ctx context.Context, sample *harness.Sample, dir string, unit time.Duration) (err error) {
	sockets, err := os.MkdirTemp("", "bench") // short: a socket's path is bounded
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(sockets)) }()
	root := filepath.Join(dir, "disks")
	driver, err := csidriver.New(csidriver.Deps{}, csidriver.Config{
		Endpoint: filepath.Join(sockets, "csi"), NodeID: "bench", Root: root, Thin: true})
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- driver.Start(running) }()
	defer func() {
		stop()
		err = errors.Join(err, <-ended)
	}()
	conn, err := grpc.NewClient("unix://"+filepath.Join(sockets, "csi"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return (&caller{ControllerClient: csi.NewControllerClient(conn), root: root, unit: unit}).measure(ctx, sample)
}

// caller calls a driver.
type caller struct {
	csi.ControllerClient
	root string
	unit time.Duration
}

func (c *caller) measure(ctx context.Context, sample *harness.Sample) error {
	_, volume, err := c.create(ctx, "source", nil)
	if err != nil {
		return err
	}
	image := filepath.Join(c.root, "volumes", volume, "disk.img")
	if err := fill(ctx, image); err != nil {
		return err
	}
	if err := c.measureClone(ctx, sample, volume); err != nil {
		return err
	}
	if err := forgetPath(image); err != nil {
		return err
	}
	began := time.Now()
	taken, err := c.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: volume}, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("take a snapshot: %w", err)
	}
	sample.Set(snapshotted, c.units(time.Since(began)))
	// The snapshot does not need its volume, and the disk has no space for a third copy.
	if _, err := c.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: volume}); err != nil {
		return fmt.Errorf("delete the volume: %w", err)
	}
	snapshot := taken.GetSnapshot().GetSnapshotId()
	if err := forgetPath(filepath.Join(c.root, "snapshots", snapshot, "disk.img")); err != nil {
		return err
	}
	took, _, err := c.create(ctx, "restored", &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snapshot}}})
	if err != nil {
		return err
	}
	sample.Set(restored, c.units(took))
	return nil
}

// measureClone measures a clone of the volume and deletes it.
func (c *caller) measureClone(ctx context.Context, sample *harness.Sample, volume string) error {
	took, clone, err := c.create(ctx, "cloned", &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: volume}}})
	if err != nil {
		return err
	}
	sample.Set(cloned, c.units(took))
	if _, err := c.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: clone}); err != nil {
		return fmt.Errorf("delete the clone: %w", err)
	}
	return nil
}

func (c *caller) units(d time.Duration) float64 { return float64(d) / float64(c.unit) }

// create creates a volume and returns how long that took, and its id.
func (c *caller) create(ctx context.Context, name string, from *csi.VolumeContentSource) (time.Duration, string, error) {
	began := time.Now()
	made, err := c.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeContentSource: from,
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		}},
	}, grpc.WaitForReady(true))
	if err != nil {
		return 0, "", fmt.Errorf("create volume %q: %w", name, err)
	}
	return time.Since(began), made.GetVolume().GetVolumeId(), nil
}
