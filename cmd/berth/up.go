package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/signals"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/up"
	"github.com/berth-dev/berth/up/containerd"
	"github.com/berth-dev/berth/up/isolate"
	"github.com/berth-dev/berth/up/progress"
)

// upFlags are the flags of `berth up`.
type upFlags struct {
	config      up.Config
	eviction    evictionFlags
	shutdown    shutdownFlags
	demo, reset bool
	apiOnly     bool
	without     []string
	from        string
	file        fileFlags
	// remembered are the flags that the cluster has kept from an earlier start.
	remembered map[string]bool
}

func newUp() *cobra.Command {
	var f upFlags
	cmd := &cobra.Command{
		Use: "up", Short: "Run a whole Kubernetes on this machine until Ctrl-C", Args: noArgs,
		Long: "Starts etcd, the API server, the controller manager, the scheduler and containerd, runs berth's controllers and\n" +
			"kubelet, and runs until Ctrl-C, which stops everything in order; so do SIGTERM and, unless started with nohup, the\n" +
			"end of its terminal. The same command restores the cluster with its Pods and their data, however the last run\n" +
			"ended.\n\n" +
			"With --isolated the cluster runs in namespaces of its own: any number of clusters run side by side with the same\n" +
			"networks, and nothing of them is left on the machine when they end, not even by kill -9. The API server is on\n" +
			"127.0.0.1 as always, node ports are on the address that the start prints, and Pods reach other networks by the\n" +
			"machine's address.\n\n" +
			"Every flag can also be a key of /etc/berth/config.yaml or of the file that --config names; a flag of the command line\n" +
			"precedes that, and that what the cluster has kept from its last start. --print-config prints what is in force.\n\n" +
			"Exit codes: 0 stopped by a signal, 1 failed to start or stop, 2 wrong usage.",
		Example: "  berth up\n  berth up --demo\n  berth up --print-config\n" +
			"  berth up --data-dir ~/second --api-port 0 --isolated\n" +
			"  berth up --data-dir ~/third --api-port 0 --pod-cidr 10.95.0.0/16 --service-cidr 10.96.0.0/16 --without kube-proxy,dns",
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.register(cmd)
	return cmd
}

// run starts the cluster, or becomes the program that starts it in namespaces of its own.
func (f *upFlags) run(cmd *cobra.Command) error {
	inside, err := isolate.FromEnvironment()
	if err != nil {
		return err
	}
	if err := f.file.apply(cmd); err != nil {
		return err
	}
	layout, err := f.layout(cmd)
	if err != nil {
		return err
	}
	if f.file.print {
		f.config = layout.Config // the flags' variables
		return f.file.show(cmd, layout, f.remembered)
	}
	if f.apiOnly && f.demo {
		return usageError{errors.New("--api-only and --demo: the demo's Pod needs a node; choose one")}
	}
	if f.apiOnly && f.config.StartLock != "" {
		return usageError{errors.New("--api-only and --start-lock: without a node nothing waits; choose one")}
	}
	if f.reset && inside == nil {
		if err := layout.Reset(cmd.Context()); err != nil {
			return err
		}
	}
	if f.from != "" && inside == nil {
		f.reset = false // it is done
		if err := f.fork(cmd); err != nil {
			return err
		}
		if layout, err = f.layout(cmd); err != nil {
			return err
		}
	}
	signals.IgnoreSIGPIPE() // the cluster runs on when the reader of its output is gone
	progress := progress.New(os.Stdout, terminalWidthFunc(), clock.RealClock{})
	cluster, err := up.New(up.Deps{Progress: progress},
		up.RunConfig{Layout: layout, Demo: f.demo, Width: terminalWidth(), Without: f.without, APIOnly: f.apiOnly, Inside: inside, Argv: os.Args})
	if err != nil {
		return err
	}
	if layout.Isolated && inside == nil {
		program, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
		// The port may have been chosen just now.
		argv := append([]string{program}, append(os.Args[1:], "--api-port", strconv.Itoa(layout.APIPort))...)
		return cluster.Isolate(cmd.Context(), argv)
	}
	return cluster.Run(cmd.Context())
}

// layout returns the layout that the flags and the saved state describe.
func (f *upFlags) layout(cmd *cobra.Command) (layout up.Layout, err error) {
	for _, part := range f.without {
		if !slices.Contains(up.OptionalComponents(), part) {
			return layout, usageError{fmt.Errorf("--without %q: known are %s", part, strings.Join(up.OptionalComponents(), ", "))}
		}
	}
	config := f.config
	if config.Eviction, err = f.eviction.config(); err != nil {
		return layout, err
	}
	if config.ShutdownPeriods, err = f.shutdown.periods(); err != nil {
		return layout, err
	}
	if config.DataDir, err = dataDir(cmd); err != nil {
		return layout, err
	}
	if !f.reset || f.from != "" { // a copy has the state of its origin
		f.remembered = map[string]bool{}
		if config, err = up.ApplySavedState(config, func(flag string) bool {
			f.remembered[flag] = !cmd.Flags().Changed(flag)
			return cmd.Flags().Changed(flag)
		}); err != nil {
			return layout, err
		}
	}
	if config.Server != "" {
		return layout, fmt.Errorf("--data-dir %s is of a node of the cluster at %s: start that with `berth node`, or choose another directory",
			config.DataDir, config.Server)
	}
	if config.Isolated && config.APIAddress != "" {
		return layout, usageError{fmt.Errorf("--isolated and --api-address %s: other machines do not reach an isolated cluster; choose one "+
			"(--api-address '' or --isolated=false ends what the cluster keeps)", config.APIAddress)}
	}
	if config.APIPort == 0 { // --api-port 0 was given
		if config.APIPort, err = up.FreePort(); err != nil {
			return layout, err
		}
	}
	config, err = config.Complete()
	if err == nil {
		layout, err = up.NewLayout(config)
	}
	if err != nil {
		return layout, usageError{err}
	}
	return layout, nil
}

// runtimeUsage is the help of --runtime.
func runtimeUsage() string {
	return "the runtime of Pods without a RuntimeClass, at each start: " + strings.Join(containerd.Runtimes(), " or ") +
		";\nPods with a RuntimeClass of either name have that one (docs/runtimes.md)"
}

// register registers the flags.
func (f *upFlags) register(cmd *cobra.Command) {
	config := &f.config
	flags := cmd.Flags()
	flags.StringVar(&config.BinDir, "bin-dir", "", "directory of berth-controlplane, containerd and the other programs (default: that of this program)")
	flags.StringVar(&config.NodeName, "node-name", "", "the Node's name (default: the host name)")
	flags.StringVar(&config.PodCIDR, "pod-cidr", up.DefaultPodCIDR, "the Pods' network; for both families IPv4,IPv6")
	flags.StringVar(&config.ServiceCIDR, "service-cidr", up.DefaultServiceCIDR, "the Services' network; for both families IPv4,IPv6")
	flags.IntVar(&config.APIPort, "api-port", up.DefaultAPIPort, "the API server's port, on loopback and on the pod bridge; 0: choose a free one, which the cluster keeps")
	flags.BoolVar(&config.Isolated, "isolated", false, "run the cluster in namespaces of its own, so that it cannot collide with the machine or another cluster")
	flags.StringVar(&config.APIAddress, "api-address", "", "an address of this machine on which the API server and the kubelet listen, too, so that other\n"+
		"machines can join (berth token create); for both families IPv4,IPv6")
	flags.StringVar(&config.LoadBalancerCIDR, "load-balancer-cidr", "", "addresses for Services of type LoadBalancer, in the machine's network; nothing else may use them\n"+
		"(default: such Services get the nodes' addresses)")
	flags.StringVar(&config.StaticPods, "pod-manifest-path", "", "a manifest, or a directory of manifests, of static Pods")
	flags.StringVar(&config.ResolvConf, "resolv-conf", "", "`file` that names the name servers for names of the outside (default: /etc/resolv.conf)")
	flags.StringVar(&config.RegistryConfig, "registry-config", "", "`directory` with mirrors and certificates of registries: NAME/hosts.toml for each, as containerd's certs.d\n"+
		"(default: "+up.DefaultRegistryConfig+" if that exists and containerd/certs.d in the data directory does not, else the latter)")
	flags.StringVar(&config.KubeletRoot, "kubelet-root-dir", "", "`directory` of Pods' files and volumes, remembered: /var/lib/kubelet for drivers and agents in Pods whose manifests\n"+
		"expect it there (default: kubelet in the data directory)")
	flags.StringVar(&config.KubeletConfig, "kubelet-config", "", kubeletConfigUsage)
	flags.StringVar(&config.Runtime, "runtime", containerd.Runtimes()[0], runtimeUsage())
	flags.BoolVar(&config.SeccompDefault, "seccomp-default", true, seccompDefaultUsage+";\nfalse leaves them without one")
	flags.BoolVar(&config.Hardened, "hardened", false, "refuse what the CIS benchmark advises against: Pods that are not restricted, where their namespace has no label that allows\n"+
		"them, and Services with external addresses; remembered until --hardened=false")
	flags.StringToStringVar(&config.FeatureGates, "feature-gates", nil, "features of Kubernetes to turn on or off in the control plane, at each start: NAME=true,...\n"+
		"(docs/features.md lists what the kubelet has of them)")
	flags.StringToStringVar(&config.RuntimeConfig, "runtime-config", nil, "versions and resources of the API to turn on or off, at each start, as kube-apiserver's flag does:\n"+
		"certificates.k8s.io/v1beta1/clustertrustbundles=true,...")
	resources := &config.Resources
	flags.StringToStringVar(&resources.KubeReserved, "kube-reserved", nil, "resources reserved for the cluster's own processes: cpu=100m,memory=200Mi,ephemeral-storage=1Gi,pid=1000\n"+
		"(default: memory 512Mi, ephemeral-storage 1Gi and pid 1000, but at most a quarter of the memory and a tenth of the others)")
	flags.StringToStringVar(&resources.SystemReserved, "system-reserved", nil, "resources reserved for the machine's other processes")
	flags.Int64Var(&resources.PodPidsLimit, "pod-max-pids", up.DefaultPodPidsLimit, "maximum number of processes per Pod; -1: unlimited")
	flags.StringVar(&resources.SwapBehavior, "swap-behavior", string(cm.NoSwap), swapUsage)
	resources.OOMScoreAdj = flags.Int("oom-score-adj", up.DefaultOOMScoreAdj, "oom_score_adj of the cluster's own processes, which a machine without CAP_SYS_RESOURCE cannot lower")
	f.eviction.add(flags, "those of Kubernetes, but of\na disk at most 2Gi")
	f.shutdown.add(flags)
	flags.BoolVar(&config.UnsafeNoFsync, "unsafe-no-fsync", false, "let etcd and containerd skip fsync: faster tests, but a power failure may lose the cluster")
	flags.DurationVar(&config.CertificateLifetime, "certificate-lifetime", 0, "how long certificates are valid (default: a year); for tests of their renewal")
	_ = flags.MarkHidden("certificate-lifetime") // the flag exists
	flags.StringVar(&config.StartLock, "start-lock", "", "a `file` that other clusters lock, shared, until their Nodes are ready: what this one starts after its own waits\n"+
		"for them, 3 s at most; for many clusters at the same time")
	flags.IntVarP(&config.Verbosity, "verbosity", "v", 0, verbosityUsage)
	flags.StringSliceVar(&f.without, "without", nil, "do not run these components, because other processes do (berth node, csi-driver, controllers): "+
		strings.Join(up.OptionalComponents(), ", "))
	flags.BoolVar(&f.apiOnly, "api-only", false, "run the API server alone, without a node and without controllers but those that collect garbage and delete namespaces:\n"+
		"for tests that want their objects as they write them")
	flags.BoolVar(&f.demo, "demo", false, "run the demo, and show how its Pod became ready")
	flags.StringVar(&f.from, "from", "", "begin with a copy of the cluster that was saved with this `name` (berth snapshot save), in a new --data-dir")
	addSnapshotsFlag(cmd)
	flags.BoolVar(&f.reset, "reset", false, "delete the cluster in --data-dir first, with all its data")
	f.file.register(flags)
}
