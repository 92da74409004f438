package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"k8s.io/client-go/discovery"

	"github.com/berth-dev/berth/up"
)

// explainDialError replaces the errors of many refused requests by one that says what to do.
func explainDialError(server string, err error) error {
	if dial := (*net.OpError)(nil); errors.As(err, &dial) && dial.Op == "dial" {
		return fmt.Errorf("the API server at %s cannot be reached: is the cluster running? `berth up` brings one of its own back (%w)",
			server, dial)
	}
	return err
}

// probeTimeout bounds the first request, which shows that the cluster can be reached.
const probeTimeout = 10 * time.Second

// checkReachable returns an error that says what to do if the API server does not respond.
func checkReachable(ctx context.Context, server string, client discovery.DiscoveryInterface) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if _, err := client.RESTClient().Get().AbsPath("/version").DoRaw(ctx); err != nil {
		return explainDialError(server, fmt.Errorf("read the version of the cluster: %w", err))
	}
	return nil
}

// noCluster is the error of a command that needs the administrator's kubeconfig of a cluster, and has not found it.
func noCluster(layout up.Layout, err error) error {
	return fmt.Errorf("no cluster found in %s: start one with `berth up`, or name its directory: berth --data-dir DIR … (%w)", layout.DataDir, err)
}
