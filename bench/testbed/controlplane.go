package testbed

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// EnvKubeconfig names, in the environment of a sample, the administrator's kubeconfig.
const EnvKubeconfig = "BERTH_BENCH_KUBECONFIG"

// ControlPlane is a running berth-controlplane: etcd, API server, controller manager and scheduler.
type ControlPlane struct {
	*Process
	// DataDir holds its kubeconfigs and certificates.
	DataDir string
}

// Network is the part of the machine's network that a cluster uses.
type Network struct {
	// PodCIDR, ServiceCIDR are ranges that nothing else here uses.
	PodCIDR, ServiceCIDR string
	// Gateway is the address of the pod bridge. Empty means that there is no bridge.
	Gateway string
}

// Missing returns an error text if one of the programs is missing in the directory.
func Missing(bin string, programs ...string) string {
	for _, program := range programs {
		if _, err := os.Stat(filepath.Join(bin, program)); err != nil {
			return fmt.Sprintf("no %s in %s: run `make build` first", program, bin)
		}
	}
	return ""
}

// StartControlPlane starts a control plane with its data in dir and returns when it is ready.
func StartControlPlane(ctx context.Context, bin, dir string, network Network, node string) (*ControlPlane, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	c := &ControlPlane{DataDir: filepath.Join(dir, "data")}
	argv := []string{
		filepath.Join(bin, "berth-controlplane"), "--data-dir", c.DataDir, "--run-dir", filepath.Join(dir, "run"),
		"--api-port", strconv.Itoa(port), "--bind-address", "127.0.0.1", "--node-name", node,
		"--pod-cidr", network.PodCIDR, "--service-cidr", network.ServiceCIDR, "--log-level", "error",
	}
	if network.Gateway != "" {
		argv = append(argv, "--bind-address", network.Gateway, "--advertise-address", network.Gateway,
			"--node-ip", network.Gateway)
	}
	c.Process, err = startAndWait(ctx, dir, "controlplane", argv, func(line string) bool {
		var event struct{ Component, State string }
		return json.Unmarshal([]byte(line), &event) == nil && event.Component == "controlplane" && event.State == "ready"
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Kubeconfig is the path of the administrator's kubeconfig.
func (c *ControlPlane) Kubeconfig() string { return filepath.Join(c.DataDir, "admin.kubeconfig") }

// Client connects with a kubeconfig, without a limit of its own.
func Client(kubeconfig string) (kubernetes.Interface, *rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	config.QPS = -1
	config.ContentType = runtime.ContentTypeProtobuf // the measuring itself must cost little
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("make client: %w", err)
	}
	return client, config, nil
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	return port, listener.Close()
}
