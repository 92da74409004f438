package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/atomicfile"
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/signals"
	"github.com/berth-dev/berth/kubelet/certificate"
	"github.com/berth-dev/berth/kubelet/daemon"
	"github.com/berth-dev/berth/kubelet/memory"
	"github.com/berth-dev/berth/up"
	"github.com/berth-dev/berth/up/containerd"
	"github.com/berth-dev/berth/up/join"
	"github.com/berth-dev/berth/up/progress"
)

// Values of --kube-proxy.
const (
	proxyAuto   = "auto"
	proxyAlways = "always"
	proxyNever  = "never"
)

// tokenFlag is the one flag with a secret.
const tokenFlag = "token"

// joinFlags are the flags of `berth node` for clusters of `berth up`.
type joinFlags struct {
	server, token, pin string
	dataDir, binDir    string
	proxy, runtime     string
	reset              bool
}

func (f *joinFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.server, "join", "", "the API server of a cluster of berth up to join, https://ADDRESS:PORT: this machine gets a containerd of\n"+
		"its own, and `berth token create` prints the whole command")
	flags.StringVar(&f.token, tokenFlag, "", "with --join: the bootstrap token; only the first start needs it")
	flags.StringVar(&f.pin, "ca-cert-hash", "", "with --join: the hash of the cluster's CA, sha256:…; only the first start needs it")
	flags.StringVar(&f.binDir, "bin-dir", "", "directory of containerd, berth-controlplane and the other programs (default: that of this program)")
	flags.StringVar(&f.runtime, "runtime", containerd.Runtimes()[0], "with --join: "+runtimeUsage())
	flags.BoolVar(&f.reset, "reset", false, "with --join: delete the node in --data-dir first, with its Pods' data")
	flags.StringVar(&f.proxy, "kube-proxy", proxyAuto, "run kube-proxy: "+proxyAuto+" (on a cluster of berth up that has it), "+proxyAlways+" or "+proxyNever)
}

func (f *joinFlags) validate(cmd *cobra.Command) error {
	if !slices.Contains([]string{proxyAuto, proxyAlways, proxyNever}, f.proxy) {
		return usageError{fmt.Errorf("--kube-proxy %q: want %s, %s or %s", f.proxy, proxyAuto, proxyAlways, proxyNever)}
	}
	if f.server == "" {
		for _, name := range []string{tokenFlag, "ca-cert-hash"} {
			if cmd.Flags().Changed(name) {
				return usageError{fmt.Errorf("--%s needs --join, the address of the API server", name)}
			}
		}
		return nil
	}
	server, err := join.ParseServer(f.server, strconv.Itoa(up.DefaultAPIPort))
	if err != nil {
		return usageError{fmt.Errorf("--join %w", err)}
	}
	f.server = server.String()
	if f.token != "" {
		if err := join.CheckToken(f.token); err != nil {
			return usageError{fmt.Errorf("--token: %w", err)}
		}
	}
	if f.pin != "" {
		if err := join.CheckPin(f.pin); err != nil {
			return usageError{fmt.Errorf("--ca-cert-hash %w", err)}
		}
	}
	return nil
}

// memberServer returns the API server of the cluster whose member this machine is, or is to be; empty if the flags join a
// cluster by a kubeconfig. known is set if it joined before.
func (f *nodeFlags) memberServer(cmd *cobra.Command) (server string, known bool, err error) {
	if f.kubeconfig != "" && f.join.server == "" {
		if cmd.Flags().Changed(dataDirFlag) || cmd.Root().Flags().Changed(dataDirFlag) || f.join.reset || cmd.Flags().Changed("runtime") {
			return "", false, usageError{errors.New("--data-dir, --runtime and --reset need --join: with --kubeconfig the node's files are below --root-dir")}
		}
		return "", false, nil
	}
	if f.join.dataDir, err = dataDir(cmd); err != nil {
		return "", false, err
	}
	saved, err := up.ApplySavedState(up.Config{DataDir: f.join.dataDir}, func(string) bool { return false })
	if err != nil {
		return "", false, err
	}
	if saved.PodCIDR != "" && saved.Server == "" {
		return "", false, fmt.Errorf("--data-dir %s is of a cluster of berth up: a machine is either that or a node of another cluster; choose "+
			"another directory", f.join.dataDir)
	}
	switch {
	case f.join.server == "" && saved.Server == "":
		return "", false, usageError{errors.New("--join or --kubeconfig is required: `berth token create` on the first machine of a cluster " +
			"of berth up prints the command, for another cluster name its kubeconfig")}
	case f.join.server != "" && saved.Server != "" && saved.Server != f.join.server && !f.join.reset:
		return "", false, fmt.Errorf("this machine is a node of the cluster at %s (--data-dir %s): start over with --reset, which deletes the "+
			"node's data, or choose another directory", saved.Server, f.join.dataDir)
	case f.join.server == "":
		return saved.Server, true, nil
	}
	return f.join.server, saved.Server != "" && !f.join.reset, nil
}

// ownedFlags are the flags that --join sets itself.
var ownedFlags = []string{
	"kubeconfig", "bootstrap-kubeconfig", "container-runtime-endpoint", "root-dir", "pod-logs-dir", "cgroup-root", "cgroup-driver", "cert-dir",
	"rotate-server-certificates", "tls-cert-file", "tls-private-key-file", "client-ca-file", "socket",
}

// runMember makes this machine a node of a cluster of `berth up`, with a containerd of its own.
func (f nodeFlags) runMember(cmd *cobra.Command, server string, known bool) error {
	for _, name := range ownedFlags {
		if cmd.Flags().Changed(name) {
			return usageError{fmt.Errorf("--%s and --join: --join runs a containerd of its own and keeps all in --data-dir; to join with a "+
				"runtime that is already running, use --kubeconfig", name)}
		}
	}
	ctx := cmd.Context()
	name, err := f.nodeName()
	if err != nil {
		return err
	}
	config, err := up.Config{DataDir: f.join.dataDir, BinDir: f.join.binDir, NodeName: name, Server: server, Runtime: f.join.runtime}.Complete()
	if err != nil {
		return usageError{err}
	}
	layout, err := up.NewLayout(config)
	if err != nil {
		return err
	}
	if f.join.reset {
		if err := layout.Reset(ctx); err != nil {
			return err
		}
	}
	signals.IgnoreSIGPIPE() // the node runs on when the reader of its output is gone
	progress := progress.New(os.Stdout, terminalWidthFunc(), clock.RealClock{})
	f.own(layout)
	if err := f.prepareBootstrap(ctx, server); err != nil {
		return err
	}
	if err := f.requestIdentity(ctx, name); err != nil {
		return fmt.Errorf("join the cluster at %s: %w", server, err)
	}
	if err := os.Remove(f.bootstrap); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the token, which is not needed any more: %w", err)
	}
	member, layout, err := f.member(ctx, config, !known)
	if err != nil {
		return err
	}
	var without []string
	if !member.Info.Proxy {
		without = append(without, "kube-proxy")
	}
	machine, err := up.New(up.Deps{Progress: progress}, up.RunConfig{
		Layout: layout, Member: member, Without: without, Width: terminalWidth(), Argv: os.Args,
	})
	if err != nil {
		return err
	}
	return machine.Run(ctx)
}

// own sets the flags of ownedFlags for a machine with that layout.
func (f *nodeFlags) own(layout up.Layout) {
	dir := layout.MemberDir()
	f.kubeconfig, f.bootstrap = filepath.Join(dir, "node.kubeconfig"), filepath.Join(dir, "bootstrap.kubeconfig")
	f.certDir, f.rotateServer = filepath.Join(dir, "pki"), true
	f.runtime, f.root = "unix://"+layout.ContainerdSocket(), layout.KubeletDir()
	f.logs, f.cgroupRoot = layout.PodLogsDir(), layout.CgroupRoot()
}

// prepareBootstrap writes the kubeconfig with the token, unless the node has its own identity already.
func (f nodeFlags) prepareBootstrap(ctx context.Context, server string) error {
	if _, err := os.Stat(f.kubeconfig); err == nil {
		return nil
	}
	if f.join.token == "" || f.join.pin == "" {
		return usageError{errors.New("--token and --ca-cert-hash are required at the first start: `berth token create` on the cluster's first " +
			"machine prints the whole command")}
	}
	address, err := join.ParseServer(server, strconv.Itoa(up.DefaultAPIPort))
	if err != nil {
		return err
	}
	ca, err := join.FetchCA(ctx, address, f.join.pin)
	if err != nil {
		return err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["berth"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos["berth"] = &clientcmdapi.AuthInfo{Token: f.join.token}
	config.Contexts["berth"] = &clientcmdapi.Context{Cluster: "berth", AuthInfo: "berth"}
	config.CurrentContext = "berth"
	if err := checkTokenAccepted(ctx, *config); err != nil {
		return err
	}
	data, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("encode the bootstrap kubeconfig: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(f.bootstrap), 0o700); err != nil {
		return fmt.Errorf("store the token: %w", err)
	}
	return atomicfile.Write(f.bootstrap, data, 0o600)
}

// checkTokenAccepted fails if the API server does not accept the token.
func checkTokenAccepted(ctx context.Context, config clientcmdapi.Config) error {
	rest, err := clientcmd.NewDefaultClientConfig(config, nil).ClientConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return fmt.Errorf("create an API client: %w", err)
	}
	err = client.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Error()
	if apierrors.IsUnauthorized(err) {
		return errors.New("--token: the cluster does not accept it: it has expired or was deleted; `berth token create` creates another one")
	}
	if err != nil {
		return fmt.Errorf("reach the API server with the token: %w", err)
	}
	return nil
}

// member returns what the machine has as a member, and its layout, which follows from what the cluster assigns to the node.
func (f nodeFlags) member(ctx context.Context, config up.Config, first bool) (*up.Member, up.Layout, error) {
	fail := func(err error) (*up.Member, up.Layout, error) { return nil, up.Layout{}, err }
	_, client, err := nodeClient(f.kubeconfig)
	if err != nil {
		return fail(err)
	}
	info, ok, err := join.ReadInfo(ctx, client)
	if err != nil {
		return fail(err)
	}
	if !ok {
		return fail(fmt.Errorf("the cluster at %s was not made by berth up: join it with --kubeconfig", config.Server))
	}
	info.Proxy = f.wantsProxy(info)
	pods, err := up.RegisterMember(ctx, client, config.NodeName, first)
	if err != nil {
		return fail(err)
	}
	rule, err := f.addressRule(info)
	if err != nil {
		return fail(err)
	}
	addresses, err := rule.Find(ctx, config.NodeName, config.Server)
	if err != nil {
		return fail(err)
	}
	_, port, err := net.SplitHostPort(strings.TrimPrefix(config.Server, "https://"))
	if err != nil {
		return fail(err)
	}
	config.PodCIDR, config.ServiceCIDR = info.PodCIDRs(), info.ServiceCIDRs()
	config.APIAddress, config.NodePodCIDR = nodeAddresses(addresses), pods
	if info.LoadBalancers.IsValid() {
		config.LoadBalancerCIDR = info.LoadBalancers.String()
	}
	if config.APIPort, err = strconv.Atoi(port); err != nil {
		return fail(err)
	}
	if config, err = config.Complete(); err != nil {
		return fail(err)
	}
	layout, err := up.NewLayout(config)
	if err != nil {
		return fail(err)
	}
	return &up.Member{Info: info}, layout, nil
}

// connect completes a member in its node's process.
func (f nodeFlags) connect(ctx context.Context, cmd *cobra.Command, layout up.Layout, member *up.Member) error {
	server, client, err := nodeClient(f.kubeconfig)
	if err != nil {
		return err
	}
	member.Node = client
	metrics := prometheus.NewRegistry()
	if member.Network, err = f.networkClient(ctx, server, client, layout.NodeName, layout.Kubeconfig("kube-proxy"), metrics); err != nil {
		return err
	}
	rule, err := f.addressRule(member.Info)
	if err != nil {
		return err
	}
	if layout.Gateway6.IsValid() { // as the first node without an IPv6 address in the machines' network
		rule.Second = layout.Gateway6.AsSlice()
	}
	member.RunKubelet, err = f.memberKubelet(cmd, member.Info, rule, metrics)
	return err
}

// wantsProxy reports whether this node runs kube-proxy.
func (f nodeFlags) wantsProxy(info join.Info) bool {
	return f.join.proxy == proxyAlways || f.join.proxy == proxyAuto && info.Proxy
}

// memberKubelet returns the function that runs the kubelet, which serves metrics beside its own. Pods ask the Service of the
// cluster's DNS, or its server where no kube-proxy forwards to it.
func (f nodeFlags) memberKubelet(cmd *cobra.Command, info join.Info, addresses daemon.AddressRule, metrics prometheus.Collector) (func(context.Context, up.KubeletParts) error, error) {
	if len(f.dns) == 0 && info.DNSService.IsValid() {
		f.dns = []string{info.DNSServer.String()}
		if info.Proxy {
			f.dns = []string{info.DNSService.String()}
		}
	}
	if !cmd.Flags().Changed("cluster-domain") {
		f.domain = info.ClusterDomain
	}
	chosen, err := f.settings()
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, parts up.KubeletParts) error {
		chosen.Agent.Logs.ContainersDir = parts.Layout.ContainerLogsDir() // another kubelet's logs may be in the usual one
		for _, warning := range chosen.Warnings {
			parts.Logger.Warn("configuration without effect", "setting", warning)
		}
		return daemon.Run(ctx, daemon.Deps{
			Timeline: parts.Timeline, Logger: parts.Logger, Exits: parts.Exits,
			Collectors: append(slices.Clone(parts.Collectors), metrics), Processes: parts.Processes,
			TracerProvider: parts.TracerProvider, Flags: flagValues(cmd), OnIdle: memory.Release, OnStop: parts.StopPods,
		}, daemon.Config{
			Settings: chosen, Kubeconfig: f.kubeconfig, CertDir: f.certDir, RootDir: f.root, NodeName: f.name,
			Addresses: addresses, LockFile: f.lockFile, ExitOnLockContention: f.lockYield,
			CredentialProviders: f.images.providers, CredentialProvidersDir: f.images.binDir, ClusterCA: true, ServeNodeIP: true,
		})
	}, nil
}

// requestIdentity requests the node's certificate with the token and writes the node's kubeconfig, unless it exists. From then
// on the kubelet renews the certificate.
func (f nodeFlags) requestIdentity(ctx context.Context, name string) error {
	if _, err := os.Stat(f.kubeconfig); err == nil {
		return nil
	}
	server, client, err := nodeClient(f.bootstrap)
	if err != nil {
		return err
	}
	manager, err := certificate.NewClient(certificate.Deps{Clientset: certificate.FixedClient(client), Logger: slog.Default()},
		certificate.Config{NodeName: name, Dir: f.certDir})
	if err != nil {
		return err
	}
	requesting, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer contain.Recover("berth.requestCertificate", name)
		_ = manager.Start(requesting) // it returns only when requesting is done
	}()
	_, err = manager.Wait(ctx)
	cancel()
	<-ended
	if err != nil {
		return err
	}
	return certificate.WriteKubeconfig(f.kubeconfig, server, manager)
}

// nodeName returns --node-name, or the machine's host name.
func (f nodeFlags) nodeName() (string, error) {
	if f.name != "" {
		return strings.ToLower(f.name), nil
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

// addressRule returns how the Node's addresses are found: --node-ip, or the source addresses that the kernel chooses for the API
// server, and for the IPv6 address of its machine.
func (f nodeFlags) addressRule(info join.Info) (daemon.AddressRule, error) {
	ips, err := parseNodeIPs(f.ip)
	if err != nil {
		return daemon.AddressRule{}, usageError{err}
	}
	if len(ips) == 1 && ips[0].To4() == nil {
		return daemon.AddressRule{}, usageError{fmt.Errorf("--node-ip %s: a node of this cluster needs an IPv4 address: give IPv4,IPv6", f.ip)}
	}
	if len(ips) > 1 && !info.PodCIDR6.IsValid() {
		return daemon.AddressRule{}, usageError{fmt.Errorf("--node-ip %s: the cluster has no IPv6: give the IPv4 address alone", f.ip)}
	}
	if len(ips) > 1 && ips[0].To4() == nil {
		ips[0], ips[1] = ips[1], ips[0] // the cluster's first family is IPv4
	}
	rule := daemon.AddressRule{IPs: ips, ServerRoute: true}
	if info.Address6.IsValid() {
		rule.SecondRoute = "https://" + netip.AddrPortFrom(info.Address6, 443).String() // nothing is sent to the port
	}
	return rule, nil
}

// nodeAddresses returns the addresses with a comma between them.
func nodeAddresses(addresses []net.IP) string {
	texts := make([]string, len(addresses))
	for i, address := range addresses {
		texts[i] = address.String()
	}
	return strings.Join(texts, ",")
}
