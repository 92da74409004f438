package nodenetwork

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/internal/netns"
)

// Config says where a cluster's processes are found on this machine.
type Config struct {
	// RuntimeSocket is the container runtime's socket.
	RuntimeSocket string
	// PeerSocket is the socket of a process that is in the PID namespace of the node's other processes. If nothing listens on
	// it, they are in this process's own.
	PeerSocket string
	// NodePID is the pid file of a process in the node's network namespace. If it is empty or of no running process, the
	// node's network is that of this process.
	NodePID string
	// Proxy and DNS are the processes of kube-proxy and of the cluster's DNS.
	Proxy, DNS Process
	// Resolvers returns the servers to which the DNS forwards, and the file that has them.
	Resolvers func() (servers []string, file string, err error)
}

// Process is where a supervised process leaves its traces.
type Process struct {
	// ConfigFile exists if the cluster runs the process.
	ConfigFile string
	// PIDFile has the process's ID and start time while it runs.
	PIDFile string
	// LogFile has its log.
	LogFile string
}

// Network is the [explain.Network] of this machine.
type Network struct{ config Config }

var _ explain.Network = (*Network)(nil)

// New returns the network of a node on this machine.
func New(config Config) *Network { return &Network{config: config} }

// Dial connects from the network namespace of the Pod; from the node's if pod is nil.
func (n *Network) Dial(ctx context.Context, pod *corev1.Pod, network, address string) (net.Conn, error) {
	process, err := n.processOf(ctx, pod)
	if err != nil {
		return nil, err
	}
	return dialIn(ctx, process, network, address)
}

// processOf returns the process that holds the Pod's namespaces; one in the node's network if pod is nil.
func (n *Network) processOf(ctx context.Context, pod *corev1.Pod) (procDir, error) {
	if pod != nil {
		return n.sandboxProcess(ctx, pod)
	}
	if process := n.running(ctx, n.config.NodePID); process != "" {
		return process, nil
	}
	return self, nil
}

// dialIn connects from the network namespace of the process.
func dialIn(ctx context.Context, process procDir, network, address string) (net.Conn, error) {
	var dialer net.Dialer
	if process == self {
		return dialer.DialContext(ctx, network, address)
	}
	var conn net.Conn
	err := netns.Do(process.file("ns/net"), func() (err error) {
		// The dialer creates the socket on this thread, because the address has no name to resolve.
		conn, err = dialer.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// maxFileBytes bounds what ReadFile reads of a file of a container.
const maxFileBytes = 64 << 10

// ReadFile reads a small file as a running container of the Pod sees it. Links lead to files of the container only.
func (n *Network) ReadFile(ctx context.Context, pod *corev1.Pod, file string) ([]byte, error) {
	process, err := n.containerProcess(ctx, pod)
	if err != nil {
		return nil, err
	}
	return readBelow(process.file("root"), file)
}

// readBelow reads a regular file below a root directory, of which no link leads out.
func readBelow(root, file string) ([]byte, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_CLOEXEC|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", root, err)
	}
	defer unix.Close(dir)
	// O_NONBLOCK: opening a named pipe must not wait for a writer.
	fd, err := unix.Openat2(dir, path.Clean("/" + file)[1:], &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, fmt.Errorf("open %s of the container: %w", file, err)
	}
	source := os.NewFile(uintptr(fd), file)
	defer source.Close()
	info, err := source.Stat()
	if err != nil {
		return nil, fmt.Errorf("read %s of the container: %w", file, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("read %s of the container: it is no regular file", file)
	}
	data, err := io.ReadAll(io.LimitReader(source, maxFileBytes))
	if err != nil {
		return nil, fmt.Errorf("read %s of the container: %w", file, err)
	}
	return data, nil
}

// runtime connects to the container runtime; the caller closes the connection.
func (n *Network) runtime() (runtimeapi.RuntimeServiceClient, io.Closer, error) {
	conn, err := grpc.NewClient("unix://"+n.config.RuntimeSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, fmt.Errorf("connect to the container runtime: %w", err)
	}
	return runtimeapi.NewRuntimeServiceClient(conn), conn, nil
}

// sandboxID returns the ID of the Pod's running sandbox.
func sandboxID(ctx context.Context, client runtimeapi.RuntimeServiceClient, pod *corev1.Pod) (string, error) {
	uid := string(pod.UID)
	if static := pod.Annotations[corev1.MirrorPodAnnotationKey]; static != "" {
		uid = static
	}
	list, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
		LabelSelector: map[string]string{kubelettypes.KubernetesPodUIDLabel: uid},
		State:         &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
	}})
	if err != nil {
		return "", fmt.Errorf("list the sandboxes of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if len(list.Items) == 0 {
		return "", fmt.Errorf("pod %s/%s has no running sandbox here: %w", pod.Namespace, pod.Name, explain.ErrOtherMachine)
	}
	return list.Items[0].Id, nil
}

// sandboxProcess returns the process that holds the Pod's namespaces.
func (n *Network) sandboxProcess(ctx context.Context, pod *corev1.Pod) (procDir, error) {
	client, conn, err := n.runtime()
	if err != nil {
		return "", err
	}
	defer conn.Close()
	id, err := sandboxID(ctx, client, pod)
	if err != nil {
		return "", err
	}
	status, err := client.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	if err != nil {
		return "", fmt.Errorf("read the sandbox of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return n.processIn(ctx, status.Info)
}

// containerProcess returns a process of a running container of the Pod; that of its sandbox if none runs.
func (n *Network) containerProcess(ctx context.Context, pod *corev1.Pod) (procDir, error) {
	client, conn, err := n.runtime()
	if err != nil {
		return "", err
	}
	defer conn.Close()
	id, err := sandboxID(ctx, client, pod)
	if err != nil {
		return "", err
	}
	list, err := client.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		PodSandboxId: id, State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return "", fmt.Errorf("list the containers of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	for _, container := range list.Containers {
		status, err := client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: container.Id, Verbose: true})
		if err != nil {
			continue // it has ended meanwhile
		}
		if process, err := n.processIn(ctx, status.Info); err == nil {
			return process, nil
		}
	}
	return n.sandboxProcess(ctx, pod)
}

// processIn reads the process from the verbose status of a sandbox or container.
func (n *Network) processIn(ctx context.Context, info map[string]string) (procDir, error) {
	var details struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal([]byte(info["info"]), &details); err != nil {
		return "", fmt.Errorf("read the process of a sandbox: %w", err)
	}
	if details.PID <= 0 {
		return "", errors.New("the container runtime does not report the process of the sandbox")
	}
	return processDir(n.proc(ctx), details.PID), nil
}
