package testbed

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime is a connection to a container runtime, for the baseline of every kubelet: the calls that a Pod needs, one
// after the other, and nothing else.
type Runtime struct {
	runtimeapi.RuntimeServiceClient
	conn *grpc.ClientConn
}

// Dial connects to a CRI endpoint.
func Dial(endpoint string) (*Runtime, error) {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", endpoint, err)
	}
	return &Runtime{RuntimeServiceClient: runtimeapi.NewRuntimeServiceClient(conn), conn: conn}, nil
}

// Close ends the connection.
func (r *Runtime) Close() error { return r.conn.Close() }

// RuntimePod is a Pod of one container, as the runtime knows it.
type RuntimePod struct{ Sandbox, Container string }

// Create does the three calls that bring a Pod to life. handler is its runtime, empty for the default.
func (r *Runtime) Create(ctx context.Context, c *Cluster, name, handler string, hostNetwork bool) (*RuntimePod, error) {
	network, hostname := runtimeapi.NamespaceMode_POD, name
	if hostNetwork {
		network, hostname = runtimeapi.NamespaceMode_NODE, "" // the host's own
	}
	namespaces := &runtimeapi.NamespaceOption{
		Network: network, Pid: runtimeapi.NamespaceMode_CONTAINER, Ipc: runtimeapi.NamespaceMode_POD,
	}
	config := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Uid: name, Namespace: "baseline"},
		Hostname:     hostname,
		LogDirectory: c.Dir + "/baseline-logs/" + name,
		DnsConfig:    &runtimeapi.DNSConfig{},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: c.CgroupRoot + "/baseline-" + name,
			// Every kubelet has to ask for the profile, and for a sandbox it is a good part of what the call costs.
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: namespaces,
				Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
			},
		},
	}
	sandbox, err := r.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
	if err != nil {
		return nil, fmt.Errorf("run sandbox %q: %w", name, err)
	}
	container, err := r.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: sandbox.PodSandboxId, SandboxConfig: config,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
			Image:    &runtimeapi.ImageSpec{Image: c.Image},
			LogPath:  "main.log",
			Linux: &runtimeapi.LinuxContainerConfig{
				Resources:       &runtimeapi.LinuxContainerResources{CpuShares: 2},
				SecurityContext: &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: namespaces},
			},
		},
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create container of %q: %w", name, err), r.remove(ctx, sandbox.PodSandboxId))
	}
	_, err = r.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: container.ContainerId})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start container of %q: %w", name, err), r.remove(ctx, sandbox.PodSandboxId))
	}
	return &RuntimePod{Sandbox: sandbox.PodSandboxId, Container: container.ContainerId}, nil
}

// Remove does the calls that end a Pod.
func (r *Runtime) Remove(ctx context.Context, pod *RuntimePod) error {
	_, err := r.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: pod.Container, Timeout: 1})
	if err != nil {
		return fmt.Errorf("stop container: %w", err)
	}
	return r.remove(ctx, pod.Sandbox)
}

func (r *Runtime) remove(ctx context.Context, sandbox string) error {
	if _, err := r.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox}); err != nil {
		return fmt.Errorf("stop sandbox: %w", err)
	}
	if _, err := r.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox}); err != nil {
		return fmt.Errorf("remove sandbox: %w", err)
	}
	return nil
}

// RuntimeVersion returns name and version of the runtime.
func (r *Runtime) RuntimeVersion(ctx context.Context) (string, error) {
	version, err := r.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return "", fmt.Errorf("ask for the runtime's version: %w", err)
	}
	return version.RuntimeName + " " + version.RuntimeVersion, nil
}
