package up

import (
	"context"
	"fmt"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/csidriver"
	"github.com/berth-dev/berth/csidriver/registrar"
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/loopdev"
	csiprovision "github.com/berth-dev/berth/provision/csi"
	"github.com/berth-dev/berth/up/csisidecar"
	"github.com/berth-dev/berth/version"
)

func (l Layout) csiSocket() string { return filepath.Join(l.RunDir, "csi.sock") }

// disksDir holds the disks of class berth-loop.
func (l Layout) disksDir() string { return filepath.Join(l.DataDir, "disks") }

// newCSIDriver returns the CSI driver for disks of this machine, and registers it with the kubelet.
func (c *Cluster) newCSIDriver() (runFunc, error) {
	config := csidriver.Config{
		Endpoint: c.csiSocket(), NodeID: c.NodeName, Root: c.disksDir(), Version: version.Berth, KeepFree: c.keepFree(),
	}
	registration := registrar.Config{
		Registry: filepath.Join(c.KubeletDir(), "plugins_registry"), Driver: csidriver.Name, Endpoint: c.csiSocket(),
	}
	return func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		group.Go(contain.Func("up.newCSIDriver", "", func() error { return csidriver.Serve(ctx, csidriver.Deps{Logger: c.logger}, config) }))
		group.Go(contain.Func("up.newCSIDriver", "", func() error { return registrar.Serve(ctx, registrar.Deps{Logger: c.logger}, registration) }))
		return group.Wait()
	}, nil
}

// keepFree returns how much of the disk is for no volume: volumes that are full must not bring the node under disk pressure,
// whose default threshold this is.
func (c *Cluster) keepFree() int64 {
	const thresholdPercent = 10
	size, err := diskSize(c.DataDir)
	if err != nil {
		c.logger.Warn("failed to measure the disk; volumes may use all of it", "error", err)
		return 0
	}
	return min(size/100*thresholdPercent, EnoughFreeBytes)
}

// newCSIProvisioner returns the controllers that provision and expand the volumes of class berth-loop, take their
// snapshots, and publish the driver's capacity.
func (c *Cluster) newCSIProvisioner() (runFunc, error) {
	clients, err := c.provisionClients()
	if err != nil {
		return nil, err
	}
	withSnapshots := c.runs(snapshotsName)
	return c.newCSISidecar(
		csisidecar.Deps{Client: clients.core, Dynamic: clients.objects, Snapshots: clients.snapshots, GroupSnapshots: clients.groups,
			Registerer: c.controllerMetrics.New("csi-provisioner")},
		csisidecar.Config{Provision: true, Capacity: true, Resize: true, Snapshot: withSnapshots, GroupSnapshot: withSnapshots, Health: true})
}

// newCSIAttacher returns the controller that publishes the volumes of class berth-loop to the node.
func (c *Cluster) newCSIAttacher() (runFunc, error) {
	client, err := c.client("attacher")
	if err != nil {
		return nil, err
	}
	return c.newCSISidecar(csisidecar.Deps{Client: client, Registerer: c.controllerMetrics.New("csi-attacher")}, csisidecar.Config{Attach: true})
}

// newCSISidecar completes deps and config for this cluster's own driver. There is no leader election, because the data
// directory's lock allows one process per cluster.
func (c *Cluster) newCSISidecar(deps csisidecar.Deps, config csisidecar.Config) (runFunc, error) {
	deps.Timeline, deps.Logger, deps.Clock = c.timeline, c.logger, c.clock
	config.Driver = csiprovision.Config{Name: csidriver.Name, Socket: c.csiSocket(), DefaultFSType: csidriver.DefaultFSType, StrictTopology: true}
	sidecar, err := csisidecar.New(deps, config)
	if err != nil {
		return nil, err
	}
	return sidecar.Start, nil
}

// detachDisks detaches the loop devices of this cluster's disks. Its mounts must be gone.
func (l Layout) detachDisks() error {
	if err := loopdev.New().DetachBelow(l.disksDir()); err != nil {
		return fmt.Errorf("detach the cluster's disks: %w", err)
	}
	return nil
}
