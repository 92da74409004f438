package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/controller/leader"
)

// whileLeading returns a function that runs start only while this process holds the Lease of that name. Replicas wait.
func whileLeading(config *rest.Config, lease string, logger *slog.Logger, start func(context.Context) error,
) (func(context.Context) error, error) {
	client, err := leader.NewClient(config)
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("find the host name: %w", err)
	}
	elector, err := leader.New(leader.Deps{Client: client, Logger: logger}, leader.Config{
		Namespace: leader.OwnNamespace(), Name: lease, Identity: host + "_" + string(uuid.NewUUID()),
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return elector.Run(ctx, start) }, nil
}

// attachDetachLease returns the name of the Lease of attachdetach. Instances that manage different nodes do not exclude
// each other.
func attachDetachLease(nodes labels.Selector) string {
	sum := sha256.Sum256([]byte(nodes.String()))
	return "berth-attachdetach-" + hex.EncodeToString(sum[:4])
}
