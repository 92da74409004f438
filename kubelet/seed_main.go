package kubelet

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/lifecycle"
	"github.com/berth-dev/berth/kubelet/server"
	kubelettypes "github.com/berth-dev/berth/kubelet/types"
	"github.com/berth-dev/berth/version"
)

const (
	defaultRootDir    = "/var/lib/kubelet"
	defaultPodLogsDir = "/var/log/pods"
	defaultEndpoint   = "unix:///run/containerd/containerd.sock"
)

// WithRootDir keeps all state below dir, an absolute path, in place of /var/lib/kubelet.
func WithRootDir(dir string) Option { return func(k *Kubelet) { k.cfg.RootDir = dir } }

// WithNode names the Node and its addresses, in place of the machine's own.
func WithNode(name string, ips ...net.IP) Option {
	return func(k *Kubelet) {
		k.cfg.NodeName = name
		if len(ips) > 0 {
			k.cfg.NodeIPs = ips
		}
	}
}

// WithPodAdmitHandler asks the handler about each new Pod that the node agent itself would take.
func WithPodAdmitHandler(handler lifecycle.PodAdmitHandler) Option {
	return func(k *Kubelet) { k.face.admits = append(k.face.admits, handler) }
}

// NewMainKubelet makes a Kubelet from upstream's configuration and callers' parts. It starts nothing and sends no
// call. Without a client in kubeDeps, or with standaloneMode, there is no API server. An error names the field that
// is wrong.
func NewMainKubelet(kubeCfg *kubeletconfig.KubeletConfiguration, kubeDeps *KubeletDeps, standaloneMode bool,
) (*Kubelet, error) {
	if kubeCfg == nil {
		return nil, errors.New("make kubelet: kubeCfg is nil")
	}
	if kubeDeps == nil {
		kubeDeps = &KubeletDeps{}
	}
	hostname := os.Hostname
	if kubeDeps.OSInterface != nil {
		hostname = kubeDeps.OSInterface.Hostname
	}
	cfg, err := configOf(kubeCfg, hostname)
	if err != nil {
		return nil, fmt.Errorf("make kubelet: %w", err)
	}
	k := newKubelet(cfg, Deps{Runtime: kubeDeps.DockerClient, Recorder: kubeDeps.Recorder})
	if k.deps.Client = kubeDeps.KubeClient; k.deps.Client == nil {
		k.deps.Client = kubeDeps.ExternalKubeClient
	}
	if standaloneMode {
		k.deps.Client = nil
	}
	if k.deps.Recorder == nil {
		k.deps.Recorder = k.face.events
	}
	k.face.configuration, k.face.injected = *kubeCfg.DeepCopy(), kubeDeps
	k.face.fed, k.face.networks = kubeDeps.PodConfig != nil, kubeDeps.NetworkPlugins
	if kubeDeps.CAdvisorInterface != nil {
		k.face.machine = kubeDeps.CAdvisorInterface
	}
	if kubeDeps.Auth != nil {
		k.face.auth = &server.Auth{Authenticator: kubeDeps.Auth, Authorizer: kubeDeps.Auth}
	}
	if adjuster := kubeDeps.OOMAdjuster; adjuster != nil {
		k.face.ownScore = func() error { return adjuster.ApplyOOMScoreAdj(0, int(kubeletScore(kubeCfg))) }
	}
	for _, option := range kubeDeps.Options {
		option(k)
	}
	if err := errors.Join(k.cfg.complete(), k.deps.complete()); err != nil {
		return nil, err
	}
	if err := k.assemble(); err != nil {
		return nil, err
	}
	for _, option := range kubeDeps.ContainerRuntimeOptions {
		option(k.runtime)
	}
	return k, nil
}

// configOf takes from upstream's configuration what this node agent has, and from the machine what that leaves open.
func configOf(in *kubeletconfig.KubeletConfiguration, hostname func() (string, error)) (Config, error) {
	host, err := hostname()
	if err != nil {
		return Config{}, fmt.Errorf("find the host name: %w", err)
	}
	reservation, err := ParseReservation(in.KubeReserved, in.SystemReserved)
	if err != nil {
		return Config{}, err
	}
	cfg := Config{
		NodeName: strings.ToLower(host), NodeIPs: []net.IP{outboundAddress()}, Version: version.Kubelet(),
		RootDir: defaultRootDir, PodLogsDir: defaultPodLogsDir, RuntimeEndpoint: defaultEndpoint,
		Taints: in.RegisterWithTaints, CgroupRoot: in.CgroupRoot, ClusterDNS: in.ClusterDNS,
		ClusterDomain: in.ClusterDomain, MaxPods: int64(in.MaxPods),
		KubeReserved: reservation.Kubernetes, SystemReserved: reservation.System,
		EnforceNodeAllocatable: in.EnforceNodeAllocatable, KubeReservedCgroup: in.KubeReservedCgroup,
		SystemReservedCgroup: in.SystemReservedCgroup,
		SwapBehavior:         cm.SwapBehavior(in.MemorySwap.SwapBehavior), SingleProcessOOMKill: in.SingleProcessOOMKill,
		FailCgroupV1: in.FailCgroupV1 != nil && *in.FailCgroupV1, FailSwapOn: in.FailSwapOn != nil && *in.FailSwapOn,
		Static: StaticConfig{
			Path: in.StaticPodPath, FilePeriod: in.FileCheckFrequency.Duration,
			URL: in.StaticPodURL, Header: in.StaticPodURLHeader, HTTPPeriod: in.HTTPCheckFrequency.Duration,
		},
	}
	if in.PodLogsDir != "" {
		cfg.PodLogsDir = filepath.Clean(in.PodLogsDir)
	}
	cfg.ContainerLogsDir = filepath.Join(filepath.Dir(cfg.PodLogsDir), filepath.Base(ContainerLogsDir))
	if in.ContainerRuntimeEndpoint != "" {
		cfg.RuntimeEndpoint = in.ContainerRuntimeEndpoint
	}
	if in.ResolverConfig != nil {
		cfg.ResolvConf = *in.ResolverConfig
	}
	if in.PodPidsLimit != nil {
		cfg.PodPidsLimit = *in.PodPidsLimit
	}
	if in.CrashLoopBackOff.MaxContainerRestartPeriod != nil {
		cfg.MaxBackoff = in.CrashLoopBackOff.MaxContainerRestartPeriod.Duration
	}
	if cfg.MaxBackoff != 0 && (cfg.MaxBackoff < time.Second || cfg.MaxBackoff > MaxContainerBackOff) {
		return Config{}, fmt.Errorf("crashLoopBackOff.maxContainerRestartPeriod %s: want 1s to %s", cfg.MaxBackoff,
			MaxContainerBackOff)
	}
	cfg.ImageMaxAge = in.ImageMaximumGCAge.Duration
	cfg.ImageVerification, cfg.NotVerified = in.ImagePullCredentialsVerificationPolicy, in.PreloadedImagesVerificationAllowlist
	if err := cfg.pullsOf(in); err != nil {
		return Config{}, err
	}
	if in.CgroupDriver != "" {
		if cfg.CgroupDriver, err = cm.ParseDriver(in.CgroupDriver); err != nil {
			return Config{}, err
		}
	}
	return cfg, nil
}

// defaultScore makes the kernel kill nearly everything else before the node agent.
const defaultScore = -999

func kubeletScore(in *kubeletconfig.KubeletConfiguration) int32 {
	if in.OOMScoreAdj != nil {
		return *in.OOMScoreAdj
	}
	return defaultScore
}

// outboundAddress is the address by which the machine reaches others, or else its loopback one.
func outboundAddress() net.IP {
	// Connecting a datagram socket sends nothing: it only makes the kernel choose a route. The address is one that
	// RFC 5737 keeps for documentation.
	connection, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 9})
	if err != nil {
		return net.IPv4(127, 0, 0, 1)
	}
	defer connection.Close()
	if local, ok := connection.LocalAddr().(*net.UDPAddr); ok {
		return local.IP
	}
	return net.IPv4(127, 0, 0, 1)
}

// ParseReservation reads what is reserved for Kubernetes' own programs and for the system's, by resource: cpu, memory,
// ephemeral-storage and pid.
func ParseReservation(kubeReserved, systemReserved map[string]string) (*kubelettypes.Reservation, error) {
	kube, err := parseResources("kubeReserved", kubeReserved)
	if err != nil {
		return nil, err
	}
	system, err := parseResources("systemReserved", systemReserved)
	if err != nil {
		return nil, err
	}
	return &kubelettypes.Reservation{Kubernetes: kube, System: system}, nil
}

func parseResources(field string, in map[string]string) (corev1.ResourceList, error) {
	out := corev1.ResourceList{}
	for key, value := range in {
		switch name := corev1.ResourceName(key); name {
		case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, "pid":
			quantity, err := resource.ParseQuantity(value)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: quantity %q: %w", field, key, value, err)
			}
			if quantity.Sign() < 0 {
				return nil, fmt.Errorf("%s: %s: quantity %q is negative", field, key, value)
			}
			out[name] = quantity
		default:
			return nil, fmt.Errorf("%s: %q cannot be reserved: cpu, memory, ephemeral-storage and pid can", field, key)
		}
	}
	return out, nil
}
