package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/provision/snapshot/binder"
	"github.com/berth-dev/berth/provision/snapshot/groupapi"
	"github.com/berth-dev/berth/provision/snapshot/groupbinder"
	"github.com/berth-dev/berth/timeline"
)

// snapshotControllers are the controllers of VolumeSnapshots and of VolumeGroupSnapshots.
type snapshotControllers struct {
	single *binder.Binder
	groups *groupbinder.Binder
}

// newSnapshotControllers returns the controllers for the cluster of config.
func newSnapshotControllers(config *rest.Config, client kubernetes.Interface, recorder *timeline.Recorder, registry *prometheus.Registry,
	logger *slog.Logger,
) (*snapshotControllers, error) {
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create an API client: %w", err)
	}
	snapshots, err := api.NewClient(config)
	if err != nil {
		return nil, err
	}
	groups, err := groupapi.NewClient(config)
	if err != nil {
		return nil, err
	}
	c := &snapshotControllers{}
	if c.single, err = binder.New(binder.Deps{
		Client: client, Snapshots: snapshots, Dynamic: objects, Timeline: recorder, Logger: logger, Registerer: registry,
	}, binder.Config{}); err != nil {
		return nil, err
	}
	c.groups, err = groupbinder.New(groupbinder.Deps{
		Client: client, Snapshots: snapshots, Groups: groups, Dynamic: objects, Timeline: recorder, Logger: logger, Registerer: registry,
	})
	return c, err
}

// Start runs both until ctx ends.
func (c *snapshotControllers) Start(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(contain.Func("snapshots.Start", "", func() error { return c.single.Start(ctx) }))
	group.Go(contain.Func("snapshots.Start", "", func() error { return c.groups.Start(ctx) }))
	return group.Wait()
}

// Ready returns nil once both work.
func (c *snapshotControllers) Ready() error { return errors.Join(c.single.Ready(), c.groups.Ready()) }

// Healthy returns an error while a worker is stuck.
func (c *snapshotControllers) Healthy() error {
	return errors.Join(c.single.Healthy(), c.groups.Healthy())
}
