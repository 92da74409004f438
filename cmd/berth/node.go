package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/loglimit"
	"github.com/berth-dev/berth/kubelet/agent"
	"github.com/berth-dev/berth/kubelet/daemon"
	"github.com/berth-dev/berth/kubelet/memory"
	"github.com/berth-dev/berth/kubelet/podworker"
	"github.com/berth-dev/berth/kubelet/settings"
	"github.com/berth-dev/berth/up/kubeletfile"
)

// nodeFlags are the flags of berth node. It has many fields because each flag is one.
type nodeFlags struct {
	kubeconfig, bootstrap, name, ip, runtime, root, logs, cgroupRoot, cgroupDriver string

	certFile, keyFile, clientCA, certDir string
	rotateServer, profiling, lockYield   bool
	debugFlags                           bool
	contention                           bool
	logQuery, debugging                  bool

	join                   joinFlags
	manifests, manifestURL string
	kubeletConfig          string
	resources              resourceFlags
	eviction               evictionFlags
	shutdown               shutdownFlags
	images                 imageFlags
	containerLogs          logFlags
	healthzPort            int
	dns                    []string
	domain, socket         string
	lockFile               string
	port                   int32
	maxPods                int32
	verbosity              int
}

func newNode() *cobra.Command { return newNodeWith(&nodeFlags{}) }

func newNodeWith(flags *nodeFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use: "node --join ADDRESS | --kubeconfig FILE", Short: "Join this machine to a cluster you have", Args: noArgs,
		Long: "With --join: makes this machine a node of a cluster of `berth up`, with a containerd, a Pod network and a kube-proxy of its own,\n" +
			"until Ctrl-C, which stops its Pods and all else in order. The same command, or `berth node` alone, starts it again.\n\n" +
			"With --kubeconfig: runs berth's kubelet against any Kubernetes cluster, on a containerd (or another CRI runtime) that is already\n" +
			"running, until Ctrl-C. Containers keep running when it stops; the next start takes them over. It logs to standard error.",
		Example: "  berth node --join https://192.0.2.10:6443 --token abcdef.0123456789abcdef --ca-cert-hash sha256:…\n" +
			"  berth node --kubeconfig node.kubeconfig\n" +
			"  berth node --bootstrap-kubeconfig bootstrap.kubeconfig --kubeconfig /var/lib/kubelet/kubeconfig --rotate-server-certificates",
		RunE: func(cmd *cobra.Command, _ []string) error { return flags.run(cmd) },
	}
	addNodeFlags(cmd, flags)
	addNodeServerFlags(cmd, flags)
	flags.images.add(cmd.Flags())
	flags.containerLogs.add(cmd.Flags())
	flags.join.add(cmd.Flags())
	return cmd
}

func addNodeFlags(cmd *cobra.Command, flags *nodeFlags) {
	f := cmd.Flags()
	f.StringVar(&flags.kubeconfig, "kubeconfig", "", "the cluster's kubeconfig with a node's identity")
	f.StringVar(&flags.name, "node-name", "", "the Node's name (default: the host name)")
	f.StringVar(&flags.ip, "node-ip", "", "the Node's address, or two of different families (default: the local address of connections to the\nAPI server)")
	f.StringVar(&flags.runtime, "container-runtime-endpoint", "unix:///run/containerd/containerd.sock", "the CRI socket")
	f.StringVar(&flags.root, "root-dir", "/var/lib/kubelet", "directory of Pods' files and volumes")
	f.StringVar(&flags.logs, "pod-logs-dir", "/var/log/pods", "directory of the containers' logs, to which the links in /var/log/containers lead")
	f.StringVar(&flags.cgroupRoot, "cgroup-root", "/", "the parent cgroup of all Pods' cgroups")
	f.StringVar(&flags.cgroupDriver, "cgroup-driver", "cgroupfs", "cgroup driver if the runtime does not report one: cgroupfs or systemd")
	f.StringSliceVar(&flags.dns, "cluster-dns", nil, "name servers of Pods")
	f.StringVar(&flags.domain, "cluster-domain", "cluster.local", "the domain of services")
	f.Int32Var(&flags.maxPods, "max-pods", 110, "maximum number of Pods on the node")
	f.StringVar(&flags.kubeletConfig, "kubelet-config", "", kubeletConfigUsage)
	f.StringVar(&flags.manifests, "pod-manifest-path", "", "a manifest, or a directory of manifests, of static Pods")
	f.StringVar(&flags.manifestURL, "manifest-url", "", "a URL that serves manifests of static Pods")
	flags.resources.add(f)
	flags.eviction.add(f, "those of Kubernetes")
	flags.shutdown.add(f)
	f.StringVar(&flags.socket, "socket", "", socketUsage)
	f.IntVarP(&flags.verbosity, "verbosity", "v", 0, verbosityUsage)
}

// addNodeServerFlags adds the flags of certificates and of the node's server.
func addNodeServerFlags(cmd *cobra.Command, flags *nodeFlags) {
	f := cmd.Flags()
	f.StringVar(&flags.bootstrap, "bootstrap-kubeconfig", "", "a kubeconfig that may request a client certificate: the node requests\n"+
		"one with it, renews it, and writes --kubeconfig")
	f.StringVar(&flags.certDir, "cert-dir", "", "directory of certificates (default: pki below --root-dir)")
	f.BoolVar(&flags.rotateServer, "rotate-server-certificates", false,
		"request the serving certificate from the cluster and renew it; an administrator must approve the requests")
	f.StringVar(&flags.certFile, "tls-cert-file", "", "serving certificate (default: self-signed, stored below --root-dir)")
	f.StringVar(&flags.keyFile, "tls-private-key-file", "", "the serving certificate's key")
	f.StringVar(&flags.clientCA, "client-ca-file", "", "CAs of the clients of the node's server (default: the kubeconfig's CA)")
	f.Int32Var(&flags.port, "port", 10250, "the port of the node's server")
	f.IntVar(&flags.healthzPort, "healthz-port", 10248, "the loopback port of /healthz, without TLS; 0: none")
	f.StringVar(&flags.lockFile, "lock-file", "", "a file that is locked while the kubelet runs, so that a second one waits")
	f.BoolVar(&flags.lockYield, "exit-on-lock-contention", false, "exit when a second kubelet waits for the --lock-file")
	f.BoolVar(&flags.logQuery, "enable-system-log-query", false,
		"allow queries of the machine's journal by service at /logs/?query=NAME")
	f.BoolVar(&flags.debugging, "enable-debugging-handlers", true, "serve exec, attach, port-forward, run and logs")
	f.BoolVar(&flags.profiling, "profiling", false, "serve Go's profiler at /debug/pprof/ to authorized clients")
	f.BoolVar(&flags.debugFlags, "enable-debug-flags-handler", false,
		"allow authorized clients to change the log level: PUT /debug/flags/v")
	f.BoolVar(&flags.contention, "contention-profiling", false,
		"with --profiling: record where goroutines block, served at /debug/pprof/block")
}

func (f nodeFlags) run(cmd *cobra.Command) error {
	if f.contention && !f.profiling {
		return usageError{errors.New("--contention-profiling needs --profiling, which serves the profile")}
	}
	if err := f.join.validate(cmd); err != nil {
		return err
	}
	server, known, err := f.memberServer(cmd)
	if err != nil {
		return err
	}
	chosen, err := f.settings()
	if err != nil {
		return err
	}
	ips, err := parseNodeIPs(f.ip)
	if err != nil {
		return usageError{err}
	}
	if server == "" && f.bootstrap == "" {
		// The parts that work with it wait for one that a bootstrap writes.
		if _, err := loadKubeconfig(f.kubeconfig); err != nil {
			return err
		}
	}
	memory.TuneGC(f.profiling)
	if server != "" {
		return f.runMember(cmd, server, known)
	}
	logger := stderrLogger(f.verbosity)
	for _, warning := range chosen.Warnings {
		logger.Warn("configuration without effect", "setting", warning)
	}
	group, ctx := errgroup.WithContext(cmd.Context())
	records, err := newTimelineServer(ctx, f.socket)
	if err != nil {
		return err
	}
	network := prometheus.NewRegistry()
	group.Go(contain.Func("berth.run", "", func() error { return records.run(ctx) }))
	group.Go(contain.Func("berth.run", "", func() error {
		return daemon.Run(ctx, daemon.Deps{
			Timeline: records.recorder, Collectors: []prometheus.Collector{records.stages, network}, Flags: flagValues(cmd),
			TracerProvider: records.tracerProvider(), OnIdle: memory.Release, Logger: logger,
		}, daemon.Config{
			Settings: chosen, Kubeconfig: f.kubeconfig, BootstrapKubeconfig: f.bootstrap, CertDir: f.certDir, RootDir: f.root,
			NodeName: f.name, Addresses: daemon.AddressRule{IPs: ips, ServerRoute: true}, LockFile: f.lockFile,
			ExitOnLockContention: f.lockYield, CredentialProviders: f.images.providers, CredentialProvidersDir: f.images.binDir,
			ClusterCA: true, ServeNodeIP: true,
		})
	}))
	group.Go(contain.Func("berth.network", "", func() error { return f.runNetwork(ctx, network, logger) }))
	return group.Wait()
}

// flagValues returns the values of the command's flags by name, except that of --token: the others are no secrets.
func flagValues(cmd *cobra.Command) map[string]string {
	values := map[string]string{}
	cmd.Flags().VisitAll(func(f *pflag.Flag) { values[f.Name] = f.Value.String() })
	delete(values, tokenFlag)
	return values
}

// settings returns what the flags say, as a KubeletConfiguration does.
func (f nodeFlags) settings() (*settings.Settings, error) {
	c := &settings.Configuration{
		ContainerRuntimeEndpoint: f.runtime, PodLogsDir: f.logs, CgroupRoot: f.cgroupRoot, CgroupDriver: f.cgroupDriver,
		ClusterDNS: f.dns, ClusterDomain: f.domain, StaticPodPath: f.manifests, StaticPodURL: f.manifestURL,
		HealthzPort: ptr.To(int32(f.healthzPort)), TLSCertFile: f.certFile, TLSPrivateKeyFile: f.keyFile,
		RotateCertificates: f.bootstrap != "", ServerTLSBootstrap: f.rotateServer,
		EnableProfilingHandler: &f.profiling, EnableContentionProfiling: f.contention, EnableDebugFlagsHandler: &f.debugFlags,
		EnableSystemLogQuery: &f.logQuery, EnableDebuggingHandlers: &f.debugging,
		SyncFrequency:          metav1.Duration{Duration: podworker.DefaultResyncPeriod},
		MakeIPTablesUtilChains: ptr.To(false),
	}
	settings.SetDefaults(c)
	c.MaxPods, c.Port = f.maxPods, f.port // also if they are 0
	c.Authentication.X509.ClientCAFile = f.clientCA
	f.images.set(c)
	f.containerLogs.set(c)
	if err := f.resources.set(c); err != nil {
		return nil, err
	}
	if err := f.eviction.set(c); err != nil {
		return nil, err
	}
	if err := f.shutdown.set(c); err != nil {
		return nil, err
	}
	chosen, err := settings.ConvertComplete(c)
	if err != nil {
		return nil, usageError{err}
	}
	// This command limits neither requests to the API server, which limits its clients itself, nor events, and it leaves the
	// machine's sysctls and its own limits as they are.
	chosen.API.QPS = -1
	chosen.Agent.Events, chosen.Agent.MaxOpenFiles, chosen.Agent.KernelDefaults = agent.EventConfig{}, 0, ""
	chosen.Agent.Images.PullQPS = f.images.qps
	if f.kubeletConfig == "" {
		return chosen, nil
	}
	file, err := kubeletfile.Read(f.kubeletConfig)
	if err != nil {
		return nil, usageError{fmt.Errorf("--kubelet-config: %w", err)}
	}
	file.Apply(&chosen.Agent)
	return chosen, nil
}

// loadKubeconfig reads a kubeconfig, or uses the Pod's own identity inside a cluster if the path is empty.
func loadKubeconfig(path string) (*rest.Config, error) {
	if path == "" {
		config, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, usageError{errors.New("--kubeconfig is required outside of a cluster's Pod")}
		}
		if err != nil {
			return nil, fmt.Errorf("use the Pod's own identity: %w", err)
		}
		return tuneClientConfig(config), nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if clientcmd.IsEmptyConfig(err) {
		return nil, fmt.Errorf("kubeconfig %q names no cluster", path) // client-go's own error suggests environment variables
	}
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %q: %w", path, err)
	}
	return tuneClientConfig(config), nil
}

// tuneClientConfig sets the options that all clients of Berth's components use.
func tuneClientConfig(config *rest.Config) *rest.Config {
	config.QPS = -1                                  // the API server's priority and fairness limits clients
	config.ContentType = runtime.ContentTypeProtobuf // cheaper than JSON on both sides
	return config
}

// verbosityUsage is the help of --verbosity.
const verbosityUsage = "log verbosity (klog levels)"

// stderrLogger returns a logger that writes to standard error, and sets it as klog's.
func stderrLogger(verbosity int) *slog.Logger {
	logger := slog.New(loglimit.New(
		slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo - slog.Level(verbosity)}), clock.RealClock{}))
	klog.SetSlogLogger(logger)
	return logger
}
