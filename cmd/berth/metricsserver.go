package main

import (
	"context"
	"fmt"
	"log/slog"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/metricsserver"
)

// metricsAddressUsage is the help of --metrics-address of `berth controllers` and `berth csi-provisioner`.
const metricsAddressUsage = "serve /metrics, /healthz and /readyz on this `HOST:PORT`, without authentication; PORT alone: on loopback (default: none)"

// component is a part of a command, and its state.
type component struct {
	start func(context.Context) error
	check metricsserver.Check
}

// newMetricsServer returns the server of the components' metrics and state, which does nothing without an address.
func newMetricsServer(address string, registries *metricsserver.Registries, components []component, logger *slog.Logger,
) (component, error) {
	c := component{check: metricsserver.Check{Name: "metrics"}, start: func(context.Context) error { return nil }}
	if address == "" {
		return c, nil
	}
	if _, err := metricsserver.ParseAddress(address); err != nil {
		return c, usageError{fmt.Errorf("--metrics-address: %w", err)}
	}
	deps := metricsserver.Deps{Gatherer: registries, Logger: logger}
	for _, each := range components {
		deps.Checks = append(deps.Checks, each.check)
	}
	server, err := metricsserver.New(deps, address)
	if err != nil {
		return c, fmt.Errorf("--metrics-address: %w", err)
	}
	c.start = server.Start
	return c, nil
}

// runComponents runs the components until ctx ends or one fails.
func runComponents(ctx context.Context, components []component) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, c := range components {
		group.Go(contain.Func("berth.runComponents", "", func() error {
			if err := c.start(ctx); err != nil {
				return fmt.Errorf("controller %s: %w", c.check.Name, err)
			}
			return nil
		}))
	}
	return group.Wait()
}
