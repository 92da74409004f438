package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/signals"
	"github.com/berth-dev/berth/kubelet/footprint"
	"github.com/berth-dev/berth/up"
)

func newUp() *cobra.Command {
	var config up.Config
	var demo, reset bool
	var without []string
	cmd := &cobra.Command{
		Use: "up", Short: "Run a whole Kubernetes on this machine until Ctrl-C", Args: noArgs,
		Long: "Starts etcd, the API server, the controller manager, the scheduler and containerd, runs berth's controllers and\n" +
			"kubelet, and stays until Ctrl-C, which stops all in order; so do SIGTERM, and the end of its terminal unless nohup\n" +
			"keeps it from that. The same command brings the cluster back with its Pods and their data, however the last run\n" +
			"ended.\n\n" +
			"Exit codes: 0 stopped when asked to, 1 it could not start or stop, 2 wrong usage.",
		Example: "  berth up\n  berth up --demo\n" +
			"  berth up --data-dir ~/second --api-port 0 --pod-cidr 10.95.0.0/16 --service-cidr 10.96.0.0/16",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			for _, part := range without {
				if !slices.Contains(up.OptionalComponents(), part) {
					return usageError{fmt.Errorf("--without %q: known are %s", part, strings.Join(up.OptionalComponents(), ", "))}
				}
			}
			if config.DataDir, err = dataDir(cmd); err != nil {
				return err
			}
			if !reset {
				if config, err = up.ApplySavedState(config, func(flag string) bool { return cmd.Flags().Changed(flag) }); err != nil {
					return err
				}
			}
			if config.APIPort == 0 { // which the flag's default is not
				if config.APIPort, err = up.FreePort(); err != nil {
					return err
				}
			}
			completed, err := config.Complete()
			if err != nil {
				return usageError{err}
			}
			layout, err := up.NewLayout(completed)
			if err != nil {
				return usageError{err}
			}
			if reset {
				if err := layout.Reset(cmd.Context()); err != nil {
					return err
				}
			}
			signals.IgnoreSIGPIPE() // the cluster is not for them alone
			footprint.Thrift(false)
			progress := up.NewProgress(os.Stdout, terminalWidthFunc(), clock.RealClock{})
			return up.New(layout, progress, up.Options{Demo: demo, Width: terminalWidth(), Without: without}).Run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&config.BinDir, "bin-dir", "", "where berth-controlplane, containerd and the rest lie (default: beside this program)")
	flags.StringVar(&config.NodeName, "node-name", "", "the Node's name (default: the host name)")
	flags.StringVar(&config.PodCIDR, "pod-cidr", up.DefaultPodCIDR, "the Pods' network")
	flags.StringVar(&config.ServiceCIDR, "service-cidr", up.DefaultServiceCIDR, "the Services' network")
	flags.IntVar(&config.APIPort, "api-port", up.DefaultAPIPort, "the API server's port, on loopback and on the pod bridge; 0: a free one, which the cluster then keeps")
	flags.StringVar(&config.StaticPods, "pod-manifest-path", "", "a manifest, or a directory of manifests, of static Pods")
	flags.BoolVar(&config.UnsafeNoFsync, "unsafe-no-fsync", false, "let etcd skip fsync: faster tests, but a power cut may lose the cluster")
	flags.IntVarP(&config.Verbosity, "verbosity", "v", 0, "how much the logs tell, as klog counts")
	flags.StringSliceVar(&without, "without", nil, "leave these to a process of their own (berth node, csi-driver, controllers): "+
		strings.Join(up.OptionalComponents(), ", "))
	flags.BoolVar(&demo, "demo", false, "run the demo too, and show how it came up")
	flags.BoolVar(&reset, "reset", false, "delete the cluster in --data-dir first, with all its data")
	return cmd
}
