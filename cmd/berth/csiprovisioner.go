package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/berth-dev/berth/provision"
	csiprovision "github.com/berth-dev/berth/provision/csi"
)

type csiProvisionerFlags struct {
	kubeconfig, address, leaderNamespace, fsType string
	leaderElection, capacity, metadata, resize   bool
	timeout, capacityPeriod                      time.Duration
	workers, metricsPort, verbosity              int
}

func newCSIProvisioner() *cobra.Command {
	var f csiProvisionerFlags
	cmd := &cobra.Command{
		Use: "csi-provisioner --csi-address SOCKET", Short: "Provision volumes by a CSI driver, as the driver's sidecar",
		Long: "Makes and removes the volumes of the CSI driver that serves on a socket, for any Kubernetes cluster, until Ctrl-C:\n" +
			"it stands in for external-provisioner in a driver's Pod. The driver says its name itself. With --enable-capacity\n" +
			"it also publishes how much room the driver has, owned by what controls its Pod (POD_NAME and POD_NAMESPACE);\n" +
			"with --enable-resizer it makes volumes larger whose claims ask for more, and stands in for external-resizer too.",
		Example: "  berth csi-provisioner --csi-address /csi/csi.sock --leader-election --enable-capacity",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.address == "" {
				return usageError{errors.New("--csi-address is required")}
			}
			return f.run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.address, "csi-address", "", "the driver's unix socket (required)")
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "the cluster's kubeconfig (inside a Pod: its own identity)")
	flags.BoolVar(&f.leaderElection, "leader-election", false, "let one of several replicas work at a time")
	flags.StringVar(&f.leaderNamespace, "leader-election-namespace", "", "where the Lease is (default: the Pod's namespace)")
	flags.DurationVar(&f.timeout, "timeout", csiprovision.DefaultTimeout, "how long one call to the driver may take; a longer one is repeated")
	flags.IntVar(&f.workers, "worker-threads", 100, "how many calls run at once")
	flags.StringVar(&f.fsType, "default-fstype", "", "the filesystem of volumes whose class names none (default: the driver's)")
	flags.BoolVar(&f.metadata, "extra-create-metadata", false, "tell the driver the names of the claim and the volume")
	flags.BoolVar(&f.capacity, "enable-capacity", false, "publish CSIStorageCapacity objects")
	flags.BoolVar(&f.resize, "enable-resizer", false, "make volumes larger whose claims ask for more, in external-resizer's place")
	flags.DurationVar(&f.capacityPeriod, "capacity-poll-interval", 0, "how often to ask for room that changes without an event (default 1m)")
	flags.IntVar(&f.metricsPort, "metrics-port", 0, "serve metrics on this port (0: do not)")
	flags.IntVarP(&f.verbosity, "verbosity", "v", 0, "how much the log tells, as klog counts")
	return cmd
}

func (f csiProvisionerFlags) run(ctx context.Context) error {
	config, err := loadKubeconfig(f.kubeconfig)
	if err != nil {
		return err
	}
	logger := stderrLogger(f.verbosity)
	name, err := driverName(ctx, f.address, logger)
	if err != nil {
		return err
	}
	parts := csiSidecars{
		driver: csiprovision.Config{Name: name, Socket: f.address, Timeout: f.timeout,
			ExtraCreateMetadata: f.metadata, DefaultFSType: f.fsType},
		capacity: f.capacity, capacityPeriod: f.capacityPeriod, resize: f.resize,
		options: []func(*provision.ProvisionController) error{
			provision.LeaderElection(f.leaderElection), provision.Threadiness(f.workers),
			provision.MetricsPort(int32(f.metricsPort)), //nolint:gosec // the option checks it
		},
	}
	if f.leaderNamespace != "" {
		parts.options = append(parts.options, provision.LeaderElectionNamespace(f.leaderNamespace))
	}
	start, err := parts.start(config, logger)
	if err != nil {
		return err
	}
	return start(ctx)
}

// driverName asks the driver for its name, and waits for the driver if it is not there yet.
func driverName(ctx context.Context, address string, logger *slog.Logger) (string, error) {
	conn, err := dialDriver(address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	logger.Info("asking the driver for its name", "socket", address)
	info, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return "", fmt.Errorf("ask the driver on %s for its name: %w", address, err)
	}
	if info.GetName() == "" {
		return "", fmt.Errorf("the driver on %s gives no name", address)
	}
	return info.GetName(), nil
}
