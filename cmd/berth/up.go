package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/signals"
	"github.com/berth-dev/berth/kubelet/memory"
	"github.com/berth-dev/berth/up"
)

func newUp() *cobra.Command {
	var config up.Config
	var demo, reset bool
	var without []string
	cmd := &cobra.Command{
		Use: "up", Short: "Run a whole Kubernetes on this machine until Ctrl-C", Args: noArgs,
		Long: "Starts etcd, the API server, the controller manager, the scheduler and containerd, runs berth's controllers and\n" +
			"kubelet, and runs until Ctrl-C, which stops everything in order; so do SIGTERM and, unless started with nohup, the\n" +
			"end of its terminal. The same command restores the cluster with its Pods and their data, however the last run\n" +
			"ended.\n\n" +
			"Exit codes: 0 stopped by a signal, 1 failed to start or stop, 2 wrong usage.",
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
			if config.APIPort == 0 { // --api-port 0 was given
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
			signals.IgnoreSIGPIPE() // the cluster runs on when the reader of its output is gone
			memory.TuneGC(false)
			progress := up.NewProgress(os.Stdout, terminalWidthFunc(), clock.RealClock{})
			cluster, err := up.New(up.Deps{Progress: progress},
				up.RunConfig{Layout: layout, Demo: demo, Width: terminalWidth(), Without: without})
			if err != nil {
				return err
			}
			return cluster.Run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&config.BinDir, "bin-dir", "", "directory of berth-controlplane, containerd and the other programs (default: that of this program)")
	flags.StringVar(&config.NodeName, "node-name", "", "the Node's name (default: the host name)")
	flags.StringVar(&config.PodCIDR, "pod-cidr", up.DefaultPodCIDR, "the Pods' network")
	flags.StringVar(&config.ServiceCIDR, "service-cidr", up.DefaultServiceCIDR, "the Services' network")
	flags.IntVar(&config.APIPort, "api-port", up.DefaultAPIPort, "the API server's port, on loopback and on the pod bridge; 0: choose a free one, which the cluster keeps")
	flags.StringVar(&config.StaticPods, "pod-manifest-path", "", "a manifest, or a directory of manifests, of static Pods")
	flags.BoolVar(&config.SeccompDefault, "seccomp-default", false, seccompDefaultUsage)
	flags.BoolVar(&config.UnsafeNoFsync, "unsafe-no-fsync", false, "let etcd skip fsync: faster tests, but a power failure may lose the cluster")
	flags.IntVarP(&config.Verbosity, "verbosity", "v", 0, verbosityUsage)
	flags.StringSliceVar(&without, "without", nil, "do not run these components, because other processes do (berth node, csi-driver, controllers): "+
		strings.Join(up.OptionalComponents(), ", "))
	flags.BoolVar(&demo, "demo", false, "run the demo, and show how its Pod became ready")
	flags.BoolVar(&reset, "reset", false, "delete the cluster in --data-dir first, with all its data")
	return cmd
}
