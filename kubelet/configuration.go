package kubelet

import (
	"cmp"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/agent"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/network"
	kubelettypes "github.com/berth-dev/berth/kubelet/types"
	"github.com/berth-dev/berth/version"
)

const (
	defaultRootDir    = "/var/lib/kubelet"
	defaultPodLogsDir = "/var/log/pods"
	defaultEndpoint   = "unix:///run/containerd/containerd.sock"
)

// convertConfiguration returns the agent's configuration for that of Kubernetes, with the machine's own values for what that
// leaves open.
func convertConfiguration(in *kubeletconfig.KubeletConfiguration, hostname func() (string, error)) (agent.Config, error) {
	host, err := hostname()
	if err != nil {
		return agent.Config{}, fmt.Errorf("find the host name: %w", err)
	}
	reservation, err := ParseReservation(in.KubeReserved, in.SystemReserved)
	if err != nil {
		return agent.Config{}, err
	}
	if period := in.CPUCFSQuotaPeriod; period != nil && (period.Duration < agent.MinCPUQuotaPeriod || period.Duration > agent.MaxCPUQuotaPeriod) {
		return agent.Config{}, fmt.Errorf("cpuCFSQuotaPeriod %s: want %s to %s", period.Duration, agent.MinCPUQuotaPeriod, agent.MaxCPUQuotaPeriod)
	}
	if in.MaxPods < 0 {
		return agent.Config{}, fmt.Errorf("maxPods %d is negative", in.MaxPods)
	}
	config := agent.Config{
		Node: agent.NodeConfig{
			Name: strings.ToLower(host), IPs: []net.IP{outboundAddress()}, Version: version.Kubelet(), Taints: in.RegisterWithTaints,
		},
		RootDir: defaultRootDir,
		Logs:    agent.LogsConfig{PodsDir: defaultPodLogsDir},
		Runtime: agent.RuntimeConfig{Endpoint: cmp.Or(in.ContainerRuntimeEndpoint, defaultEndpoint)},
		DNS:     network.DNS{ClusterDNS: in.ClusterDNS, ClusterDomain: in.ClusterDomain, ResolvConf: ptr.Deref(in.ResolverConfig, "")},
		Pods:    agent.PodConfig{Max: int64(in.MaxPods), SeccompDefault: ptr.Deref(in.SeccompDefault, false)},
		Cgroups: agent.CgroupConfig{
			Root: in.CgroupRoot, FailV1: ptr.Deref(in.FailCgroupV1, false), FailSwapOn: ptr.Deref(in.FailSwapOn, false),
			SwapBehavior: cm.SwapBehavior(in.MemorySwap.SwapBehavior), SingleProcessOOMKill: in.SingleProcessOOMKill,
			NoCPUQuota: !ptr.Deref(in.CPUCFSQuota, true), CPUQuotaPeriod: ptr.Deref(in.CPUCFSQuotaPeriod, metav1.Duration{}).Duration,
			PodPidsLimit: ptr.Deref(in.PodPidsLimit, 0), KubeletCgroups: in.KubeletCgroups, SystemCgroups: in.SystemCgroups,
			Enforcement: cm.Enforcement{
				KubeReserved: reservation.Kubernetes, SystemReserved: reservation.System, Enforce: in.EnforceNodeAllocatable,
				KubeReservedCgroup: in.KubeReservedCgroup, SystemReservedCgroup: in.SystemReservedCgroup,
			},
		},
		Static: agent.StaticConfig{
			Path: in.StaticPodPath, FilePeriod: in.FileCheckFrequency.Duration,
			URL: in.StaticPodURL, Header: in.StaticPodURLHeader, HTTPPeriod: in.HTTPCheckFrequency.Duration,
		},
		Images: agent.ImageConfig{
			MaxAge: in.ImageMaximumGCAge.Duration, Verification: in.ImagePullCredentialsVerificationPolicy,
			NotVerified: in.PreloadedImagesVerificationAllowlist,
		},
	}
	if in.PodLogsDir != "" {
		config.Logs.PodsDir = filepath.Clean(in.PodLogsDir)
	}
	config.Logs.ContainersDir = filepath.Join(filepath.Dir(config.Logs.PodsDir), filepath.Base(ContainerLogsDir))
	if in.CrashLoopBackOff.MaxContainerRestartPeriod != nil {
		config.Pods.MaxBackoff = in.CrashLoopBackOff.MaxContainerRestartPeriod.Duration
	}
	if backoff := config.Pods.MaxBackoff; backoff != 0 && (backoff < time.Second || backoff > MaxContainerBackOff) {
		return agent.Config{}, fmt.Errorf("crashLoopBackOff.maxContainerRestartPeriod %s: want 1s to %s", backoff, MaxContainerBackOff)
	}
	if err := convertImagePulls(&config.Images, in); err != nil {
		return agent.Config{}, err
	}
	if in.CgroupDriver != "" {
		if config.Cgroups.Driver, err = cm.ParseDriver(in.CgroupDriver); err != nil {
			return agent.Config{}, err
		}
	}
	return config, nil
}

// outboundAddress returns the address by which the machine reaches others, or else its loopback one.
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

// defaultPullQPS is the default of registryPullQPS.
const defaultPullQPS = 5

// convertImagePulls sets how images are pulled: one at a time unless the configuration says otherwise.
func convertImagePulls(c *agent.ImageConfig, in *kubeletconfig.KubeletConfiguration) error {
	c.PullQPS, c.PullBurst = defaultPullQPS, int(in.RegistryBurst)
	if in.RegistryPullQPS != nil {
		c.PullQPS = float32(*in.RegistryPullQPS)
	}
	if c.PullQPS < 0 || c.PullBurst < 0 {
		return fmt.Errorf("registryPullQPS %v and registryBurst %d: want no negative number", c.PullQPS, c.PullBurst)
	}
	serial := in.SerializeImagePulls
	switch most := in.MaxParallelImagePulls; {
	case most != nil && *most < 1:
		return fmt.Errorf("maxParallelImagePulls %d: want at least 1", *most)
	case most != nil && *most > 1 && serial != nil && *serial:
		return fmt.Errorf("maxParallelImagePulls %d: serializeImagePulls has to be false for more than 1", *most)
	case most != nil:
		c.MaxParallelPulls = int(*most)
	case serial == nil || *serial:
		c.MaxParallelPulls = 1
	default:
		c.MaxParallelPulls = math.MaxInt32 // no limit
	}
	return nil
}

// ParseReservation parses what is reserved for the daemons of Kubernetes and of the system, by resource: cpu, memory,
// ephemeral-storage and pid.
func ParseReservation(kubeReserved, systemReserved map[string]string) (*kubelettypes.Reservation, error) {
	kube, err := cm.ParseReserved("kubeReserved", kubeReserved)
	if err != nil {
		return nil, err
	}
	system, err := cm.ParseReserved("systemReserved", systemReserved)
	if err != nil {
		return nil, err
	}
	return &kubelettypes.Reservation{Kubernetes: kube, System: system}, nil
}
