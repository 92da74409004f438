package testbed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

// Kubelet is the kubelet that a node runs.
type Kubelet string

// The kubelets.
const (
	Berth    Kubelet = "berth"
	Upstream Kubelet = "kubernetes"
)

// UpstreamProgram is the file of Kubernetes' kubelet in the directory of programs; see the module bench/upstream.
const UpstreamProgram = "bench/kubelet"

const nodeTimeout = 90 * time.Second

// devicePlugins is where Kubernetes' kubelet keeps its register of devices, whatever --root-dir says.
const devicePlugins = "/var/lib/kubelet/device-plugins"

// Node is a running kubelet.
type Node struct {
	*Process
	client              kubernetes.Interface
	removeDevicePlugins bool // it did not exist before the kubelet was started
	disk                *disk
}

// Stop stops the kubelet and removes what it left outside of its directory.
func (n *Node) Stop() error {
	err := errors.Join(n.Process.Stop(), n.disk.remove())
	if !n.removeDevicePlugins {
		return err
	}
	if gone := os.RemoveAll(devicePlugins); gone != nil {
		return errors.Join(err, fmt.Errorf("remove the kubelet's register of devices: %w", gone))
	}
	_ = os.Remove(filepath.Dir(devicePlugins)) // it stays if it is not empty
	return err
}

// NodeConfig is what benchmarks change of a kubelet's configuration.
type NodeConfig struct {
	// EvictionHard are thresholds of evictions, in addition to those that nothing meets.
	EvictionHard map[string]string
	// StaticCPUs gives containers of Guaranteed Pods CPUs of their own; CPU 0 is reserved.
	StaticCPUs bool
	// Disk, if not 0, is the size in bytes of a file system of the kubelet's own, so that nothing else fills it.
	Disk int64
}

// KubeletDir returns the directory of a kubelet.
func (c *Cluster) KubeletDir(kubelet Kubelet) string {
	return filepath.Join(c.Dir, "kubelet-"+string(kubelet))
}

// StartNode starts a kubelet and returns when its Node is ready and takes Pods.
func StartNode(ctx context.Context, c *Cluster, kubelet Kubelet, client kubernetes.Interface, config NodeConfig) (*Node, error) {
	err := client.CoreV1().Nodes().Delete(ctx, NodeName, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("delete the previous Node: %w", err)
	}
	n := &Node{client: client}
	if n.disk, err = mountDisk(c.KubeletDir(kubelet), config.Disk); err != nil {
		return nil, err
	}
	argv, err := kubeletCommand(c, kubelet, config)
	if err != nil {
		return nil, errors.Join(err, n.disk.remove())
	}
	if _, err := os.Lstat(devicePlugins); kubelet == Upstream && errors.Is(err, os.ErrNotExist) {
		n.removeDevicePlugins = true
	}
	if n.Process, err = start(ctx, c.Dir, "kubelet-"+string(kubelet), argv, nil, nil); err != nil {
		return nil, errors.Join(err, n.disk.remove())
	}
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	if err := n.waitReady(ctx); err != nil {
		return nil, errors.Join(err, n.earlyExit(), n.Stop())
	}
	return n, nil
}

func kubeletCommand(c *Cluster, kubelet Kubelet, change NodeConfig) ([]string, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	root := c.KubeletDir(kubelet)
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, fmt.Errorf("make the kubelet's directory: %w", err)
	}
	logs := filepath.Join(root, "logs")
	program, err := installProgram(c, kubelet)
	if err != nil {
		return nil, err
	}
	// The state of a node whose policy was another one.
	if err := os.Remove(filepath.Join(root, "cpu_manager_state")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the CPU manager's state: %w", err)
	}
	if kubelet == Berth {
		// A disk that fills up for other reasons must not evict the Pods that are measured.
		hard := map[string]string{"memory.available": "1Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
			"imagefs.available": "0%", "imagefs.inodesFree": "0%"}
		maps.Copy(hard, change.EvictionHard)
		var thresholds []string
		for signal, value := range hard {
			thresholds = append(thresholds, signal+"<"+value)
		}
		argv := []string{
			program, "node", "--kubeconfig", c.componentKubeconfig("node"), "--node-name", NodeName,
			"--node-ip", c.Network.Gateway, "--container-runtime-endpoint", c.Runtime, "--root-dir", root,
			"--pod-logs-dir", logs, "--cgroup-root", c.CgroupRoot, "--port", strconv.Itoa(port),
			"--eviction-hard", strings.Join(thresholds, ","),
			"--healthz-port", "0", // as for the other kubelet below: the port is one of the machine
		}
		if !change.StaticCPUs {
			return argv, nil
		}
		path := filepath.Join(root, "managers.json")
		return append(argv, "--kubelet-config", path), writeConfig(path, staticCPUs(kubeletconfig.KubeletConfiguration{TypeMeta: kubeletConfiguration}))
	}
	if err := makeCgroups(c.CgroupRoot); err != nil {
		return nil, err
	}
	config, err := upstreamConfig(c, root, logs, port, change)
	if err != nil {
		return nil, err
	}
	return []string{
		program, "--kubeconfig", c.componentKubeconfig("node"), "--hostname-override", NodeName,
		"--node-ip", c.Network.Gateway, "--root-dir", root, "--cert-dir", filepath.Join(root, "pki"), "--config", config,
	}, nil
}

// installProgram copies a kubelet's program, as installing does, and returns the copy's path. A file that a linker has just
// written lies in the page cache in pieces of up to 2 MiB, of which the kernel counts each whole to a process that touches
// a byte of it; that would measure how long ago the program was built. See docs/architecture.md, Memory.
func installProgram(c *Cluster, kubelet Kubelet) (string, error) {
	from := filepath.Join(c.Bin, "berth")
	if kubelet == Upstream {
		from = filepath.Join(c.Bin, UpstreamProgram)
	}
	to := filepath.Join(c.Dir, "programs", string(kubelet))
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return "", fmt.Errorf("install %s: %w", from, err)
	}
	if _, err := os.Stat(to); err == nil {
		return to, nil // an earlier sample's
	}
	if err := copyFile(from, to+".part"); err != nil {
		return "", fmt.Errorf("install %s: %w", from, err)
	}
	if err := os.Rename(to+".part", to); err != nil {
		return "", fmt.Errorf("install %s: %w", from, err)
	}
	return to, nil
}

// copyFile copies a program in small pieces.
func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	// Whole-file copies of the kernel's would write large pieces again, so both are hidden from io.Copy.
	_, err = io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{in}, make([]byte, 64<<10))
	return err
}

// waitReady waits until the Node is ready and no taint keeps Pods off.
func (n *Node) waitReady(ctx context.Context) error {
	changes, err := n.client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + NodeName})
	if err != nil {
		return fmt.Errorf("watch the node: %w", err)
	}
	defer changes.Stop()
	for {
		select {
		case <-n.ended:
			return errors.New("the kubelet ended before its node was ready")
		case event, open := <-changes.ResultChan():
			if !open {
				return fmt.Errorf("wait for the node: the watch ended: %w", ctx.Err())
			}
			if node, is := event.Object.(*corev1.Node); is && isSchedulable(node) {
				return nil
			}
		}
	}
}

func isSchedulable(node *corev1.Node) bool {
	for _, taint := range node.Spec.Taints {
		if taint.Effect != corev1.TaintEffectPreferNoSchedule {
			return false
		}
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue && node.Status.Allocatable.Pods().Value() > 0
		}
	}
	return false
}
