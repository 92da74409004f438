package main

import (
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

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/version"
)

type nodeFlags struct {
	kubeconfig, name, ip, runtime, root, logs, cgroupRoot, cgroupDriver string
	certFile, keyFile, clientCA                                         string
	dns                                                                 []string
	domain                                                              string
	port                                                                int32
	maxPods                                                             int64
	verbosity                                                           int
}

func newNode() *cobra.Command {
	var flags nodeFlags
	cmd := &cobra.Command{
		Use: "node --kubeconfig FILE", Short: "Join this machine to a cluster you have", Args: noArgs,
		Long: "Runs berth's node agent against any Kubernetes cluster, on a containerd (or another CRI runtime) that is already\n" +
			"running, until Ctrl-C. Containers run on when it stops; the next start finds them.",
		RunE: func(cmd *cobra.Command, _ []string) error { return flags.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&flags.kubeconfig, "kubeconfig", "", "the cluster's kubeconfig with a node's identity (required)")
	f.StringVar(&flags.name, "node-name", "", "the Node's name (default: the host name)")
	f.StringVar(&flags.ip, "node-ip", "", "the Node's address (default: the one from which the API server is reached)")
	f.StringVar(&flags.runtime, "container-runtime-endpoint", "unix:///run/containerd/containerd.sock", "the CRI socket")
	f.StringVar(&flags.root, "root-dir", "/var/lib/kubelet", "Pods' directories and volumes")
	f.StringVar(&flags.logs, "pod-logs-dir", "/var/log/pods", "the containers' logs")
	f.StringVar(&flags.cgroupRoot, "cgroup-root", "/", "the cgroup below which Pods' cgroups lie")
	f.StringVar(&flags.cgroupDriver, "cgroup-driver", "cgroupfs", "who manages cgroups: cgroupfs or systemd, as the runtime is set")
	f.StringVar(&flags.certFile, "tls-cert-file", "", "serving certificate (default: self-signed, kept below --root-dir)")
	f.StringVar(&flags.keyFile, "tls-private-key-file", "", "the serving certificate's key")
	f.StringVar(&flags.clientCA, "client-ca-file", "", "CAs of the clients of the node's server (default: the kubeconfig's CA)")
	f.StringSliceVar(&flags.dns, "cluster-dns", nil, "name servers of Pods")
	f.StringVar(&flags.domain, "cluster-domain", "cluster.local", "the domain of services")
	f.Int32Var(&flags.port, "port", 10250, "the port of the node's server")
	f.Int64Var(&flags.maxPods, "max-pods", 110, "how many Pods the node takes")
	f.IntVarP(&flags.verbosity, "verbosity", "v", 0, "how much the log tells, as klog counts")
	return cmd
}

func (f nodeFlags) run(cmd *cobra.Command) (err error) {
	if f.kubeconfig == "" {
		return usageError{errors.New("--kubeconfig is required: which cluster should this machine join?")}
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("berth node makes mounts and cgroups, so it must run as root (now uid %d): use sudo", os.Geteuid())
	}
	logger := stderrLogger(f.verbosity)
	rest, err := loadKubeconfig(f.kubeconfig)
	if err != nil {
		return err
	}
	config, err := f.config(rest)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return fmt.Errorf("make an API client: %w", err)
	}
	leases, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return fmt.Errorf("make an API client: %w", err)
	}
	events := record.NewBroadcaster()
	defer events.Shutdown()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	k, err := kubelet.New(config, kubelet.Deps{
		Client: client, LeaseClient: leases, Timeline: timeline.New(clock.RealClock{}, 0), Logger: logger,
		Recorder: events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelet", Host: config.NodeName}),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.Close()) }()
	logger.Info("joining", "cluster", rest.Host, "node", config.NodeName, "address", config.NodeIPs[0])
	return k.Start(cmd.Context())
}

func (f nodeFlags) config(rest *rest.Config) (kubelet.Config, error) {
	driver, known := map[string]cm.Driver{"cgroupfs": cm.DriverCgroupfs, "systemd": cm.DriverSystemd}[f.cgroupDriver]
	if !known {
		return kubelet.Config{}, usageError{fmt.Errorf("--cgroup-driver %q: cgroupfs and systemd are known", f.cgroupDriver)}
	}
	name := f.name
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return kubelet.Config{}, fmt.Errorf("find the host name (or give --node-name): %w", err)
		}
		name = strings.ToLower(host)
	}
	ip, err := f.address(rest.Host)
	if err != nil {
		return kubelet.Config{}, err
	}
	server := kubelet.ServerConfig{
		Addresses: []string{net.JoinHostPort(ip.String(), strconv.Itoa(int(f.port)))}, Port: f.port,
		CertFile: f.certFile, KeyFile: f.keyFile, ClientCAFile: f.clientCA,
	}
	if err := f.completeServer(&server, rest, name, ip); err != nil {
		return kubelet.Config{}, err
	}
	return kubelet.Config{
		NodeName: name, NodeIPs: []net.IP{ip}, Version: version.Kubelet(),
		RootDir: f.root, PodLogsDir: f.logs, RuntimeEndpoint: f.runtime,
		CgroupRoot: f.cgroupRoot, CgroupDriver: driver, ClusterDNS: f.dns, ClusterDomain: f.domain, MaxPods: f.maxPods,
		Server: server,
	}, nil
}

// address is the node's own address: the flag's, or the one that the kernel would use towards the API server.
func (f nodeFlags) address(server string) (net.IP, error) {
	if f.ip != "" {
		ip, err := netip.ParseAddr(f.ip)
		if err != nil {
			return nil, usageError{fmt.Errorf("--node-ip %q: not an address", f.ip)}
		}
		return ip.AsSlice(), nil
	}
	target, err := url.Parse(server)
	if err != nil || target.Host == "" {
		return nil, fmt.Errorf("find the node's address: the API server %q is no URL: give --node-ip", server)
	}
	port := target.Port()
	if port == "" {
		port = "443"
	}
	// Connecting a datagram socket sends nothing: it only makes the kernel choose a route.
	connection, err := net.Dial("udp", net.JoinHostPort(target.Hostname(), port))
	if err != nil {
		return nil, fmt.Errorf("find the node's address (or give --node-ip): %w", err)
	}
	defer connection.Close()
	return connection.LocalAddr().(*net.UDPAddr).IP, nil
}

// completeServer fills in a self-signed certificate and the cluster's CA where no files were named.
func (f nodeFlags) completeServer(server *kubelet.ServerConfig, rest *rest.Config, name string, ip net.IP) error {
	dir := filepath.Join(f.root, "pki")
	if (server.CertFile == "") != (server.KeyFile == "") {
		return usageError{errors.New("--tls-cert-file and --tls-private-key-file go together")}
	}
	if server.CertFile == "" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("keep the serving certificate: %w", err)
		}
		// It is kept below dir and used again by the next start.
		crt, key, err := cert.GenerateSelfSignedCertKeyWithFixtures(name, []net.IP{ip}, nil, dir)
		if err != nil {
			return fmt.Errorf("make a serving certificate: %w", err)
		}
		server.CertFile, server.KeyFile = filepath.Join(dir, "kubelet.crt"), filepath.Join(dir, "kubelet.key")
		if err := errors.Join(os.WriteFile(server.CertFile, crt, 0o600), os.WriteFile(server.KeyFile, key, 0o600)); err != nil {
			return fmt.Errorf("keep the serving certificate: %w", err)
		}
	}
	if server.ClientCAFile != "" {
		return nil
	}
	ca := rest.CAData
	if len(ca) == 0 && rest.CAFile != "" {
		server.ClientCAFile = rest.CAFile
		return nil
	}
	if len(ca) == 0 {
		return nil // callers then come with tokens only
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("keep the clients' CA: %w", err)
	}
	server.ClientCAFile = filepath.Join(dir, "client-ca.crt")
	if err := os.WriteFile(server.ClientCAFile, ca, 0o600); err != nil {
		return fmt.Errorf("keep the clients' CA: %w", err)
	}
	return nil
}

// loadKubeconfig reads a kubeconfig, or uses the Pod's own identity inside a cluster if the path is empty.
func loadKubeconfig(path string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %q: %w", path, err)
	}
	config.QPS = -1 // the API server's own fairness limits us
	return config, nil
}

// stderrLogger is the log of the parts that run for themselves.
func stderrLogger(verbosity int) *slog.Logger {
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo - slog.Level(verbosity)}))
	klog.SetSlogLogger(logger)
	return logger
}
