package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/csidriver"
	"github.com/berth-dev/berth/csidriver/registrar"
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/version"
)

func newCSIDriver() *cobra.Command {
	var config csidriver.Config
	var registry string
	var verbosity int
	var keepFree resource.QuantityValue
	cmd := &cobra.Command{
		Use: "csi-driver --endpoint SOCKET --node-id NAME --root DIR", Short: "Serve disks of this machine over CSI",
		Long: "Serves the CSI driver " + csidriver.Name + " until Ctrl-C: volumes are sparse image files on loop devices, with real\n" +
			"size limits, ext4, xfs or raw block, expansion, snapshots and clones. With --plugins-registry it registers itself\n" +
			"with the node's kubelet.",
		Example: "  berth csi-driver --endpoint /run/disks/csi.sock --node-id worker-1 --root /var/lib/disks \\\n" +
			"      --plugins-registry /var/lib/kubelet/plugins_registry",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if config.Endpoint == "" || config.NodeID == "" || config.Root == "" {
				return usageError{errors.New("--endpoint, --node-id and --root are required")}
			}
			if os.Geteuid() != 0 {
				return fmt.Errorf("berth csi-driver makes loop devices and mounts, so it must run as root (now uid %d): use sudo", os.Geteuid())
			}
			config.KeepFree = keepFree.Value()
			logger := stderrLogger(verbosity)
			group, ctx := errgroup.WithContext(cmd.Context())
			group.Go(contain.Func("berth.newCSIDriver", "", func() error { return csidriver.Serve(ctx, csidriver.Deps{Logger: logger}, config) }))
			if registry != "" {
				group.Go(contain.Func("berth.newCSIDriver", "", func() error { return register(ctx, config, registry, logger) }))
			}
			return group.Wait()
		},
	}
	config.Version = version.Berth
	f := cmd.Flags()
	f.StringVar(&config.Endpoint, "endpoint", "", "the unix socket to serve on (required)")
	f.StringVar(&config.NodeID, "node-id", "", "this node's name (required)")
	f.StringVar(&config.Root, "root", "", "the directory of the images (required)")
	f.Int64Var(&config.MaxVolumes, "max-volumes", 0, "how many volumes the node may have attached (0: no limit)")
	f.StringVar(&config.Name, "name", csidriver.Name, "the driver's name")
	f.BoolVar(&config.Shared, "shared", false, "--root is shared by several nodes: a volume can be attached to any of them, to one at a time")
	f.BoolVar(&config.NodeOnly, "node-only", false, "with --shared: serve no controller service; another node's driver does")
	f.BoolVar(&config.Thin, "thin", false, "allow volumes whose sizes sum to more than the disk has free, also in classes without the parameter overcommit")
	f.Var(&keepFree, "keep-free", "how much of the disk is for its other users, and for no volume, such as 10Gi")
	f.StringVar(&registry, "plugins-registry", "", "the kubelet's plugins_registry directory, to register there")
	f.IntVarP(&verbosity, "verbosity", "v", 0, verbosityUsage)
	return cmd
}

func register(ctx context.Context, config csidriver.Config, registry string, logger *slog.Logger) error {
	return registrar.Serve(ctx, registrar.Deps{Logger: logger}, registrar.Config{
		Registry: registry, Driver: config.Name, Endpoint: strings.TrimPrefix(config.Endpoint, "unix://"),
	})
}
