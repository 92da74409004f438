package main

import (
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/metricsserver"
	csiprovision "github.com/berth-dev/berth/provision/csi"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/provision/snapshot/groupapi"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/up/csisidecar"
)

// newCSISidecar returns the controllers of one CSI driver, with clients for the cluster of clientConfig. In a Pod,
// POD_NAME and POD_NAMESPACE name it, as the downward API sets them.
func newCSISidecar(clientConfig *rest.Config, config csisidecar.Config, recorder *timeline.Recorder,
	registry *prometheus.Registry, logger *slog.Logger,
) (*csisidecar.Sidecar, error) {
	client, err := kubernetes.NewForConfig(clientConfig)
	if err != nil {
		return nil, fmt.Errorf("create an API client: %w", err)
	}
	objects, err := dynamic.NewForConfig(clientConfig)
	if err != nil {
		return nil, fmt.Errorf("create an API client: %w", err)
	}
	snapshots, err := api.NewClient(clientConfig)
	if err != nil {
		return nil, err
	}
	groups, err := groupapi.NewClient(clientConfig)
	if err != nil {
		return nil, err
	}
	config.PodNamespace, config.PodName = os.Getenv("POD_NAMESPACE"), os.Getenv("POD_NAME")
	return csisidecar.New(csisidecar.Deps{
		Client: client, Dynamic: objects, Snapshots: snapshots, GroupSnapshots: groups, Timeline: recorder, Logger: logger, Registerer: registry,
	}, config)
}

// sidecarComponent returns the controllers of one driver as a component.
func sidecarComponent(name string, sidecar *csisidecar.Sidecar) component {
	return component{start: sidecar.Start, check: metricsserver.Check{
		Name: name, Ready: sidecar.Ready, Healthy: sidecar.Healthy, IsWaiting: sidecar.IsWaiting,
	}}
}

// csi returns the controllers of one CSI driver, given as NAME=SOCKET.
func (f controllersFlags) csi(driver string, config *rest.Config, recorder *timeline.Recorder, registry *prometheus.Registry,
) (component, error) {
	name, socket, ok := strings.Cut(driver, "=")
	if !ok || name == "" || socket == "" {
		return component{}, usageError{fmt.Errorf("--csi-driver %q: want NAME=SOCKET", driver)}
	}
	sidecar, err := newCSISidecar(config, csisidecar.Config{
		Driver:    csiprovision.Config{Name: name, Socket: socket},
		Provision: true, Attach: f.attach, Capacity: f.capacity, Resize: f.resize, Snapshot: f.snapshot, GroupSnapshot: f.snapshot, Health: true,
		LeaderElection: f.leaderElection,
	}, recorder, registry, stderrLogger(f.verbosity))
	if err != nil {
		return component{}, err
	}
	return sidecarComponent("csi "+name, sidecar), nil
}
