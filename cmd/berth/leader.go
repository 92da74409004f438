package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/controller/leader"
	"github.com/berth-dev/berth/internal/metricsserver"
)

// whileLeading returns a component that runs c only while this process holds the Lease of that name. Replicas wait; they
// are ready meanwhile, so that a rolling update of a Deployment does not wait for them.
func whileLeading(config *rest.Config, lease string, registerer prometheus.Registerer, logger *slog.Logger, c component) (component, error) {
	elector, err := newElector(config, lease, registerer, logger)
	if err != nil {
		return component{}, err
	}
	isWaiting := func() bool { return !elector.IsLeading() }
	return component{
		start: func(ctx context.Context) error { return elector.Run(ctx, c.start) },
		check: metricsserver.Check{Name: c.check.Name, Healthy: c.check.Healthy, IsWaiting: isWaiting, Ready: func() error {
			if isWaiting() {
				return nil
			}
			return c.check.Ready()
		}},
	}, nil
}

func newElector(config *rest.Config, lease string, registerer prometheus.Registerer, logger *slog.Logger) (*leader.Elector, error) {
	client, err := leader.NewClient(config)
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("find the host name: %w", err)
	}
	return leader.New(leader.Deps{Client: client, Logger: logger, Registerer: registerer}, leader.Config{
		Namespace: leader.OwnNamespace(), Name: lease, Identity: host + "_" + string(uuid.NewUUID()),
	})
}

// attachDetachLease returns the name of the Lease of attachdetach. Instances that manage different nodes do not exclude
// each other.
func attachDetachLease(nodes labels.Selector) string {
	sum := sha256.Sum256([]byte(nodes.String()))
	return "berth-attachdetach-" + hex.EncodeToString(sum[:4])
}
