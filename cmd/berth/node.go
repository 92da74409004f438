package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/agent"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/memory"
	"github.com/berth-dev/berth/kubelet/network"
	"github.com/berth-dev/berth/kubelet/watchdog"
	"github.com/berth-dev/berth/version"
)

// nodeLogDir is the directory that a node's server serves at /logs/.
const nodeLogDir = "/var/log"

// nodeFlags are the flags of berth node. It has many fields because each flag is one.
type nodeFlags struct {
	kubeconfig, bootstrap, name, ip, runtime, root, logs, cgroupRoot, cgroupDriver string

	certFile, keyFile, clientCA, certDir string
	rotateServer, profiling, lockYield   bool
	debugFlags                           bool
	contention                           bool
	logQuery, debugging                  bool

	manifests, manifestURL string
	resources              resourceFlags
	images                 imageFlags
	containerLogs          logFlags
	healthzPort            int
	dns                    []string
	domain, socket         string
	lockFile               string
	port                   int32
	maxPods                int64
	verbosity              int
}

func newNode() *cobra.Command {
	var flags nodeFlags
	cmd := &cobra.Command{
		Use: "node --kubeconfig FILE", Short: "Join this machine to a cluster you have", Args: noArgs,
		Long: "Runs berth's kubelet against any Kubernetes cluster, on a containerd (or another CRI runtime) that is already\n" +
			"running, until Ctrl-C. Containers keep running when it stops; the next start takes them over. It logs to standard error.",
		Example: "  berth node --kubeconfig node.kubeconfig\n" +
			"  berth node --bootstrap-kubeconfig bootstrap.kubeconfig --kubeconfig /var/lib/kubelet/kubeconfig --rotate-server-certificates",
		RunE: func(cmd *cobra.Command, _ []string) error { return flags.run(cmd) },
	}
	addNodeFlags(cmd, &flags)
	addNodeServerFlags(cmd, &flags)
	flags.images.add(cmd.Flags())
	flags.containerLogs.add(cmd.Flags())
	return cmd
}

func addNodeFlags(cmd *cobra.Command, flags *nodeFlags) {
	f := cmd.Flags()
	f.StringVar(&flags.kubeconfig, "kubeconfig", "", "the cluster's kubeconfig with a node's identity (required)")
	f.StringVar(&flags.name, "node-name", "", "the Node's name (default: the host name)")
	f.StringVar(&flags.ip, "node-ip", "", "the Node's address (default: the local address of connections to the API server)")
	f.StringVar(&flags.runtime, "container-runtime-endpoint", "unix:///run/containerd/containerd.sock", "the CRI socket")
	f.StringVar(&flags.root, "root-dir", "/var/lib/kubelet", "directory of Pods' files and volumes")
	f.StringVar(&flags.logs, "pod-logs-dir", "/var/log/pods", "directory of the containers' logs")
	f.StringVar(&flags.cgroupRoot, "cgroup-root", "/", "the parent cgroup of all Pods' cgroups")
	f.StringVar(&flags.cgroupDriver, "cgroup-driver", "cgroupfs", "cgroup driver if the runtime does not report one: cgroupfs or systemd")
	f.StringSliceVar(&flags.dns, "cluster-dns", nil, "name servers of Pods")
	f.StringVar(&flags.domain, "cluster-domain", "cluster.local", "the domain of services")
	f.Int64Var(&flags.maxPods, "max-pods", 110, "maximum number of Pods on the node")
	f.StringVar(&flags.manifests, "pod-manifest-path", "", "a manifest, or a directory of manifests, of static Pods")
	f.StringVar(&flags.manifestURL, "manifest-url", "", "a URL that serves manifests of static Pods")
	flags.resources.add(f)
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

func (f nodeFlags) run(cmd *cobra.Command) (err error) {
	if f.contention && !f.profiling {
		return usageError{errors.New("--contention-profiling needs --profiling, which serves the profile")}
	}
	if f.kubeconfig == "" {
		return usageError{errors.New("--kubeconfig is required: name the kubeconfig of the cluster to join")}
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("berth node makes mounts and cgroups, so it must run as root (now uid %d): use sudo", os.Geteuid())
	}
	memory.TuneGC(f.profiling)
	logger := stderrLogger(f.verbosity)
	name, err := f.nodeName()
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	id, err := f.identify(ctx, name, logger)
	defer id.stop()
	if err != nil {
		return err
	}
	config, err := f.config(ctx, id, name)
	if err != nil {
		return err
	}
	client, err := id.client()
	if err != nil {
		return err
	}
	leases, err := id.client()
	if err != nil {
		return err
	}
	records, err := newTimelineServer(ctx, f.socket)
	if err != nil {
		return err
	}
	k, err := agent.New(agent.Deps{
		Client: client, LeaseClient: leases, Timeline: records.recorder, Logger: logger,
		Collectors: append(id.metrics, records.stages), TracerProvider: records.tracerProvider(),
		OnIdle: memory.Release, Flags: flagValues(cmd), FindIPs: f.addresses(id.server.Host),
		OnNodeIPsChanged: func(ips []net.IP) {
			id.conns.CloseAll()
			if err := id.onAddressesChanged(ips); err != nil {
				logger.Error("serving certificate does not cover the node's current address", "addresses", ips, "error", err)
			}
		},
	}, config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.Close()) }()
	if _, err := os.Stat(f.manifests); f.manifests != "" && err != nil { // it may be created later
		logger.Warn("--pod-manifest-path does not exist yet; static Pods are disabled until it does", "error", err)
	}
	dog, err := watchdog.New(watchdog.Deps{Ready: k.Serving(), Healthy: k.Healthy, Logger: logger})
	if err != nil {
		return err
	}
	logger.Info("joining the cluster", "cluster", id.server.Host, "node", config.Node.Name, "address", config.Node.IPs[0])
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return records.run(ctx) })
	group.Go(func() error { return k.Start(ctx) })
	group.Go(func() error { return dog.Start(ctx) })
	return group.Wait()
}

// flagValues returns the values of the command's flags by name. None of them is a secret: secrets are in files.
func flagValues(cmd *cobra.Command) map[string]string {
	values := map[string]string{}
	cmd.Flags().VisitAll(func(f *pflag.Flag) { values[f.Name] = f.Value.String() })
	return values
}

// nodeName returns --node-name, or the machine's host name.
func (f nodeFlags) nodeName() (string, error) {
	if f.name != "" {
		return f.name, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("find the host name (or give --node-name): %w", err)
	}
	return strings.ToLower(host), nil
}

// certificateDir returns the directory of the node's certificates.
func (f nodeFlags) certificateDir() string {
	if f.certDir != "" {
		return f.certDir
	}
	return filepath.Join(f.root, "pki")
}

func (f nodeFlags) config(ctx context.Context, id *identity, name string) (agent.Config, error) {
	driver, err := cm.ParseDriver(f.cgroupDriver)
	if err != nil {
		return agent.Config{}, usageError{fmt.Errorf("--cgroup-driver: %w", err)}
	}
	ip, err := f.address(ctx, id.server.Host)
	if err != nil {
		return agent.Config{}, err
	}
	server := agent.ServerConfig{
		Addresses: []string{net.JoinHostPort(ip.String(), strconv.Itoa(int(f.port)))}, Port: f.port,
		CertFile: f.certFile, KeyFile: f.keyFile, ClientCAFile: f.clientCA,
	}
	if err := f.serve(ctx, id, &server, name, ip); err != nil {
		return agent.Config{}, err
	}
	server.Profiling, server.Contention, server.DebugFlags = f.profiling, f.contention, f.debugFlags
	server.LogDir, server.LogQuery, server.NoDebugging = nodeLogDir, f.logQuery, !f.debugging
	if f.healthzPort > 0 {
		server.HealthzAddress = net.JoinHostPort("127.0.0.1", strconv.Itoa(f.healthzPort))
	}
	config := agent.Config{
		Node:    agent.NodeConfig{Name: name, IPs: []net.IP{ip}, Version: version.Kubelet()},
		RootDir: f.root,
		Logs: agent.LogsConfig{
			PodsDir: f.logs, ContainersDir: filepath.Join(filepath.Dir(f.logs), filepath.Base(agent.ContainerLogsDir)),
		},
		Runtime:     agent.RuntimeConfig{Endpoint: f.runtime},
		Cgroups:     agent.CgroupConfig{Root: f.cgroupRoot, Driver: driver},
		DNS:         network.DNS{ClusterDNS: f.dns, ClusterDomain: f.domain},
		Pods:        agent.PodConfig{Max: f.maxPods},
		Lock:        agent.LockConfig{File: f.lockFile, ExitOnContention: f.lockYield},
		Static:      agent.StaticConfig{Path: f.manifests, URL: f.manifestURL},
		Server:      server,
		OOMScoreAdj: ptr.To(agent.DefaultOOMScoreAdj),
	}
	f.images.set(&config)
	return config, errors.Join(f.containerLogs.apply(&config), f.resources.apply(&config))
}

// addressTimeout bounds the DNS lookup of the API server's name.
const addressTimeout = 10 * time.Second

// addresses returns a function that detects the node's address again, nil if --node-ip sets it.
func (f nodeFlags) addresses(server string) func(context.Context) ([]net.IP, error) {
	if f.ip != "" {
		return nil
	}
	return func(ctx context.Context) ([]net.IP, error) {
		ip, err := f.address(ctx, server)
		return []net.IP{ip}, err
	}
}

// address returns the node's own address: --node-ip, or the source address that the kernel chooses for the API server.
func (f nodeFlags) address(ctx context.Context, server string) (net.IP, error) {
	if f.ip != "" {
		ip, err := netip.ParseAddr(f.ip)
		if err != nil {
			return nil, usageError{fmt.Errorf("--node-ip %q: not an address", f.ip)}
		}
		return ip.AsSlice(), nil
	}
	target, err := url.Parse(server)
	if err != nil || target.Host == "" {
		return nil, fmt.Errorf("find the node's address: the API server %q is not a URL: give --node-ip", server)
	}
	port := target.Port()
	if port == "" {
		port = "443"
	}
	// Connecting a datagram socket sends nothing: it only makes the kernel choose a route.
	dialer := net.Dialer{Timeout: addressTimeout}
	connection, err := dialer.DialContext(ctx, "udp", net.JoinHostPort(target.Hostname(), port))
	if err != nil {
		return nil, fmt.Errorf("find the node's address (or give --node-ip): %w", err)
	}
	defer connection.Close()
	return connection.LocalAddr().(*net.UDPAddr).IP, nil
}

// completeServer fills in a self-signed certificate and the cluster's CA if the flags name no files.
func (f nodeFlags) completeServer(server *agent.ServerConfig, id *identity, name string, ip net.IP) error {
	dir := f.certificateDir()
	if (server.CertFile == "") != (server.KeyFile == "") {
		return usageError{errors.New("--tls-cert-file and --tls-private-key-file go together")}
	}
	if server.CertFile == "" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("store the serving certificate: %w", err)
		}
		server.CertFile, server.KeyFile = filepath.Join(dir, "kubelet.crt"), filepath.Join(dir, "kubelet.key")
		id.onAddressesChanged = func(ips []net.IP) error { return selfSign(name, dir, server.CertFile, server.KeyFile, ips) }
		if err := id.onAddressesChanged([]net.IP{ip}); err != nil {
			return err
		}
	}
	return f.completeClientCA(server, id.server)
}

// selfSign writes a serving certificate and its key. A certificate that was created before for the same addresses is
// reused: it is stored in dir.
func selfSign(name, dir, certFile, keyFile string, ips []net.IP) error {
	crt, key, err := cert.GenerateSelfSignedCertKeyWithFixtures(name, ips, nil, dir)
	if err != nil {
		return fmt.Errorf("create a serving certificate: %w", err)
	}
	if err := errors.Join(os.WriteFile(certFile, crt, 0o600), os.WriteFile(keyFile, key, 0o600)); err != nil {
		return fmt.Errorf("store the serving certificate: %w", err)
	}
	return nil
}

// completeClientCA uses the cluster's CA for clients if --client-ca-file is not set.
func (f nodeFlags) completeClientCA(server *agent.ServerConfig, rest *rest.Config) error {
	dir := f.certificateDir()
	if server.ClientCAFile != "" {
		return nil
	}
	ca := rest.CAData
	if len(ca) == 0 && rest.CAFile != "" {
		server.ClientCAFile = rest.CAFile
		return nil
	}
	if len(ca) == 0 {
		return nil // clients can authenticate with tokens only
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("store the clients' CA: %w", err)
	}
	server.ClientCAFile = filepath.Join(dir, "client-ca.crt")
	if err := os.WriteFile(server.ClientCAFile, ca, 0o600); err != nil {
		return fmt.Errorf("store the clients' CA: %w", err)
	}
	return nil
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
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo - slog.Level(verbosity)}))
	klog.SetSlogLogger(logger)
	return logger
}
