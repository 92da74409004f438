package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/berth-dev/berth/internal/metricsserver"
	"github.com/berth-dev/berth/provision"
	csiprovision "github.com/berth-dev/berth/provision/csi"
	"github.com/berth-dev/berth/provision/nodeselect"
	"github.com/berth-dev/berth/up/csisidecar"
)

// csiProvisionerFlags has many fields because each flag has one.
type csiProvisionerFlags struct {
	kubeconfig, address, leaderNamespace, fsType, metrics string
	leaderElection, capacity, metadata, resize, snapshot  bool
	nodeDeployment, immediate, strictTopology             bool
	timeout, capacityPeriod, baseDelay, maxDelay          time.Duration
	workers, metricsPort, verbosity                       int
}

func newCSIProvisioner() *cobra.Command {
	var f csiProvisionerFlags
	cmd := &cobra.Command{
		Use: "csi-provisioner --csi-address SOCKET", Short: "Provision volumes by a CSI driver, as the driver's sidecar",
		Long: "Provisions and deletes the volumes of the CSI driver that serves on a socket, for any Kubernetes cluster, until\n" +
			"Ctrl-C: it replaces external-provisioner in a driver's Pod. It reads the driver's name from the driver. With\n" +
			"--enable-capacity it also publishes CSIStorageCapacity objects, owned by the controller of its Pod (POD_NAME and\n" +
			"POD_NAMESPACE); with --enable-resizer it expands volumes whose claims request more, and replaces external-resizer too;\n" +
			"with --enable-snapshotter it takes the snapshots of the driver's volumes, and replaces csi-snapshotter.",
		Example: "  berth csi-provisioner --csi-address /csi/csi.sock --leader-election --enable-capacity",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case f.address == "":
				return usageError{errors.New("--csi-address is required")}
			case f.nodeDeployment && (f.leaderElection || f.resize || f.snapshot):
				return usageError{errors.New("--node-deployment excludes --leader-election, --enable-resizer and --enable-snapshotter: " +
					"the driver of one node does not serve the volumes of the others")}
			case f.baseDelay <= 0 || f.maxDelay < f.baseDelay:
				return usageError{errors.New("--node-deployment-base-delay must be more than 0, and --node-deployment-max-delay not less than it")}
			}
			return f.run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.address, "csi-address", "", "the driver's unix socket (required)")
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "the cluster's kubeconfig (inside a Pod: its own identity)")
	flags.BoolVar(&f.leaderElection, "leader-election", false, "run several replicas of which one at a time is active")
	flags.StringVar(&f.leaderNamespace, "leader-election-namespace", "", "namespace of the leader election Lease (default: the Pod's namespace)")
	flags.DurationVar(&f.timeout, "timeout", csiprovision.DefaultTimeout, "timeout of one call to the driver; a call that times out is repeated")
	flags.IntVar(&f.workers, "worker-threads", 100, "maximum number of concurrent calls")
	flags.StringVar(&f.fsType, "default-fstype", "", "the filesystem of volumes whose class names none (default: the driver's)")
	flags.BoolVar(&f.metadata, "extra-create-metadata", false, "pass the names of the claim and the volume to the driver")
	flags.BoolVar(&f.strictTopology, "strict-topology", false,
		"pass only the topology of the selected node to the driver (default: those of its other nodes, too, which volumes that span several need)")
	flags.BoolVar(&f.capacity, "enable-capacity", false, "publish CSIStorageCapacity objects")
	flags.BoolVar(&f.resize, "enable-resizer", false, "expand volumes whose claims request more, in place of external-resizer")
	flags.BoolVar(&f.snapshot, "enable-snapshotter", false, "take and delete snapshots and group snapshots, in place of the sidecar csi-snapshotter")
	flags.BoolVar(&f.nodeDeployment, "node-deployment", false,
		"provision only what is on this node, on each of which the driver runs (NODE_NAME from the downward API)")
	flags.BoolVar(&f.immediate, "node-deployment-immediate-binding", true,
		"with --node-deployment, select this node for claims of classes that bind at once, if the other nodes' provisioners have not selected theirs")
	flags.DurationVar(&f.baseDelay, "node-deployment-base-delay", nodeselect.DefaultBaseDelay,
		"how long at most to wait before the first try to select this node; twice as long before each further try")
	flags.DurationVar(&f.maxDelay, "node-deployment-max-delay", nodeselect.DefaultMaxDelay, "how long at most to wait before a try to select this node")
	flags.DurationVar(&f.capacityPeriod, "capacity-poll-interval", 0, "how often to poll the driver's capacity for changes that have no event (default 1m)")
	flags.IntVar(&f.metricsPort, "metrics-port", 0, "serve the provision controller's metrics on this port of all addresses (0: disabled)")
	flags.StringVar(&f.metrics, "metrics-address", "", metricsAddressUsage)
	flags.IntVarP(&f.verbosity, "verbosity", "v", 0, verbosityUsage)
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
	node := ""
	if f.nodeDeployment {
		if node = os.Getenv("NODE_NAME"); node == "" {
			return usageError{errors.New("--node-deployment: set NODE_NAME to spec.nodeName by the downward API")}
		}
	}
	registries := &metricsserver.Registries{}
	sidecar, err := newCSISidecar(config, csisidecar.Config{
		Driver: csiprovision.Config{Name: name, Socket: f.address, Timeout: f.timeout,
			ExtraCreateMetadata: f.metadata, DefaultFSType: f.fsType, StrictTopology: f.strictTopology, NodeName: node},
		NodeDeployment: f.nodeDeployment, SelectNode: f.nodeDeployment && f.immediate, SelectNodeBaseDelay: f.baseDelay, SelectNodeMaxDelay: f.maxDelay,
		Provision: true, Capacity: f.capacity, CapacityPeriod: f.capacityPeriod, Resize: f.resize, Snapshot: f.snapshot, GroupSnapshot: f.snapshot, Health: !f.nodeDeployment,
		LeaderElection: f.leaderElection, LeaderElectionNamespace: f.leaderNamespace,
		ProvisionOptions: []provision.Option{
			provision.Threadiness(f.workers),
			provision.MetricsPort(int32(f.metricsPort)), //nolint:gosec // the option checks it
		},
	}, nil, registries.New("csi"), logger)
	if err != nil {
		return err
	}
	controllers := sidecarComponent("csi "+name, sidecar)
	server, err := newMetricsServer(f.metrics, registries, []component{controllers}, logger)
	if err != nil {
		return err
	}
	return runComponents(ctx, []component{controllers, server})
}

// driverName reads the driver's name over CSI. It waits for a driver that does not serve yet.
func driverName(ctx context.Context, address string, logger *slog.Logger) (string, error) {
	conn, err := csisidecar.Dial(address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	logger.Info("reading the driver's name", "socket", address)
	info, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return "", fmt.Errorf("read the name of the driver on %s: %w", address, err)
	}
	if info.GetName() == "" {
		return "", fmt.Errorf("the driver on %s reports an empty name", address)
	}
	return info.GetName(), nil
}
