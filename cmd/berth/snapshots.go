package main

import (
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/provision/snapshot/binder"
	"github.com/berth-dev/berth/timeline"
)

// newSnapshotBinder returns the controller of VolumeSnapshots for the cluster of config.
func newSnapshotBinder(config *rest.Config, client kubernetes.Interface, recorder *timeline.Recorder, registry *prometheus.Registry,
	logger *slog.Logger,
) (*binder.Binder, error) {
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create an API client: %w", err)
	}
	snapshots, err := api.NewClient(config)
	if err != nil {
		return nil, err
	}
	return binder.New(binder.Deps{
		Client: client, Snapshots: snapshots, Dynamic: objects, Timeline: recorder, Logger: logger, Registerer: registry,
	}, binder.Config{})
}
