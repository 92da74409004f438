package kuberuntime

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/network"
	"github.com/berth-dev/berth/kubelet/securitycontext"
)

// Config is what the runtime's configurations depend on beside the Pod. It does not change while the kubelet runs.
type Config struct {
	// PodLogsDir returns the directory of one Pod's logs below root.
	PodLogsDir string
	// SeccompRoot is the directory of local seccomp profiles.
	SeccompRoot string
	// SeccompDefault gives containers that ask for no seccomp profile the runtime's.
	SeccompDefault bool
	// DNS are the values of Pods' resolver files, and the cluster's domain.
	DNS network.DNS
	// Resources are the options of CPU, memory and OOM limits.
	Resources cm.ResourceOptions
	// RecursiveReadOnly says that the runtime can make a mount read-only with all mounts below it.
	RecursiveReadOnly bool
}

// Builder builds the runtime's configurations of sandboxes and containers. It has no state and is safe for concurrent
// use.
type Builder struct {
	config Config
}

// NewBuilder returns a Builder.
func NewBuilder(config Config) *Builder {
	return &Builder{config: config}
}

// SandboxOptions is what a sandbox is configured with beside the Pod.
type SandboxOptions struct {
	// CgroupParent is what cm.Manager.EnsurePod returned.
	CgroupParent string
	// ExtraGroups are group ids that the Pod's volumes request.
	ExtraGroups []int64
	// UserNamespace is the Pod's own user namespace; a Pod with hostUsers=false must have one.
	UserNamespace *runtimeapi.UserNamespace
}

// SandboxConfig builds the configuration of the Pod's sandbox. The warnings are for events on the Pod. An error is a
// *container.ConfigError and names the invalid field. The log directory in the result is not created; see
// [EnsureLogDir].
func (b *Builder) SandboxConfig(pod *corev1.Pod, attempt uint32,
	opts SandboxOptions) (*runtimeapi.PodSandboxConfig, []network.Warning, error) {
	dns, warnings, err := b.config.DNS.ForPod(pod)
	if err != nil {
		return nil, nil, container.NewConfigError(err)
	}
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt,
		},
		LogDirectory: PodLogsDir(b.config.PodLogsDir, pod.Namespace, pod.Name, pod.UID),
		DnsConfig:    dns,
		PortMappings: portMappings(pod),
		Labels:       sandboxLabels(pod),
		Annotations:  pod.Annotations,
	}
	if !pod.Spec.HostNetwork {
		name, domain, err := network.Hostname(pod, b.config.DNS.ClusterDomain)
		if err == nil {
			config.Hostname, err = network.KernelHostname(pod, name, domain)
		}
		if err != nil {
			return nil, warnings, container.NewConfigError(err)
		}
	}
	if config.Linux, err = b.linuxSandbox(pod, opts); err != nil {
		return nil, warnings, container.NewConfigError(err)
	}
	return config, warnings, nil
}

func (b *Builder) linuxSandbox(pod *corev1.Pod, opts SandboxOptions) (*runtimeapi.LinuxPodSandboxConfig, error) {
	if err := checkUserNamespace(pod, opts.UserNamespace); err != nil {
		return nil, err
	}
	sc, err := securitycontext.Sandbox(pod, securitycontext.Inputs{
		Namespaces: namespaces(pod, opts.UserNamespace), ExtraGroups: opts.ExtraGroups,
	})
	if err != nil {
		return nil, err
	}
	config := &runtimeapi.LinuxPodSandboxConfig{
		CgroupParent:    opts.CgroupParent,
		SecurityContext: sc,
		Sysctls:         map[string]string{},
	}
	config.Resources, config.Overhead = b.SandboxResources(pod)
	if pod.Spec.SecurityContext != nil {
		for _, sysctl := range pod.Spec.SecurityContext.Sysctls {
			config.Sysctls[SysctlName(sysctl.Name)] = sysctl.Value
		}
	}
	return config, nil
}

// SandboxResources returns what all containers of the Pod need together, for runtimes that size a virtual machine for it,
// and separately what the runtime itself needs, nil if the Pod has no overhead.
func (b *Builder) SandboxResources(pod *corev1.Pod) (resources, overhead *runtimeapi.LinuxContainerResources) {
	opts := resourcehelper.PodResourcesOptions{ExcludeOverhead: true}
	requests, limits := resourcehelper.PodRequests(pod, opts), resourcehelper.PodLimits(pod, opts)
	resources = b.sandboxResources(requests.Cpu(), limits.Cpu(), limits.Memory())
	if own := pod.Spec.Overhead; len(own) > 0 {
		overhead = b.sandboxResources(own.Cpu(), own.Cpu(), own.Memory())
	}
	return resources, overhead
}

func (b *Builder) sandboxResources(cpuRequest, cpuLimit, memoryLimit *resource.Quantity) *runtimeapi.LinuxContainerResources {
	r := &runtimeapi.LinuxContainerResources{
		CpuShares: cm.Shares(cpuRequest.MilliValue()), MemoryLimitInBytes: memoryLimit.Value(),
	}
	if !b.config.Resources.NoCPUQuota {
		r.CpuPeriod = cm.DefaultQuotaPeriod
		if b.config.Resources.QuotaPeriod > 0 {
			r.CpuPeriod = b.config.Resources.QuotaPeriod
		}
		r.CpuQuota = cm.Quota(cpuLimit.MilliValue(), r.CpuPeriod)
	}
	return r
}

// SysctlName returns a sysctl's name with dots between its parts. In the form with slashes a dot belongs to a part, such
// as an interface's name, and becomes a slash.
func SysctlName(name string) string {
	first := strings.IndexAny(name, "./")
	if first < 0 || name[first] == '.' {
		return name
	}
	return strings.NewReplacer("/", ".", ".", "/").Replace(name)
}

func checkUserNamespace(pod *corev1.Pod, userns *runtimeapi.UserNamespace) error {
	if podutil.HasUserNamespace(pod) && userns == nil {
		return errors.New("read spec.hostUsers: false needs a user namespace, and the Pod has none")
	}
	return nil
}

// portMappings returns the host ports of the Pod. A Pod on the host's network has none.
func portMappings(pod *corev1.Pod) []*runtimeapi.PortMapping {
	if pod.Spec.HostNetwork {
		return nil
	}
	var mappings []*runtimeapi.PortMapping
	for c, kind := range podutil.Containers(&pod.Spec) {
		if kind != podutil.Regular && !podutil.IsSidecar(c, kind) {
			continue
		}
		for _, p := range c.Ports {
			if p.HostPort == 0 {
				continue
			}
			mapping := &runtimeapi.PortMapping{ContainerPort: p.ContainerPort, HostPort: p.HostPort, HostIp: p.HostIP}
			switch p.Protocol {
			case corev1.ProtocolUDP:
				mapping.Protocol = runtimeapi.Protocol_UDP
			case corev1.ProtocolSCTP:
				mapping.Protocol = runtimeapi.Protocol_SCTP
			}
			mappings = append(mappings, mapping)
		}
	}
	return mappings
}

// PodLogsDir is the directory of one Pod's logs below root.
func PodLogsDir(root, namespace, name string, uid types.UID) string {
	return filepath.Join(root, fmt.Sprintf("%s_%s_%s", namespace, name, uid))
}

// LogPath returns the path of a container instance's log below its Pod's log directory.
func LogPath(containerName string, attempt uint32) string {
	return filepath.Join(containerName, fmt.Sprintf("%d.log", attempt))
}
