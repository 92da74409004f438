package testbed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-dev/berth/internal/loopdev"
)

// envCluster holds a Cluster as JSON in the environment of a sample.
const envCluster = "BERTH_BENCH_CLUSTER"

// NodeName is the name of the one node.
const NodeName = "bench"

// Cluster is a control plane and a container runtime without a kubelet, as samples use it.
type Cluster struct {
	// Bin holds Berth's programs, Dir the cluster's files.
	Bin, Dir string
	// DataDir is the control plane's.
	DataDir string
	// Runtime is the CRI endpoint, RuntimePID the process of containerd.
	Runtime    string
	RuntimePID int
	// Network is the cluster's.
	Network Network
	// Image is an image whose program does nothing and ends on a signal.
	Image string
	// CgroupRoot is the cgroup below which all Pods lie.
	CgroupRoot string
}

// Kubeconfig is the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.DataDir, "admin.kubeconfig") }

func (c *Cluster) componentKubeconfig(name string) string {
	return filepath.Join(c.DataDir, "kubeconfigs", name+".kubeconfig")
}

// ClusterFromEnv is the cluster that the sample's benchmark has set up.
func ClusterFromEnv() (*Cluster, error) {
	var c Cluster
	if err := json.Unmarshal([]byte(os.Getenv(envCluster)), &c); err != nil {
		return nil, fmt.Errorf("read the cluster from the environment: %w", err)
	}
	return &c, nil
}

// Running is a cluster with the functions that stop it.
type Running struct {
	Cluster
	stops []func() error
}

// StartCluster starts a control plane and a container runtime with files in dir.
func StartCluster(ctx context.Context, bin, dir string, network Network) (_ *Running, err error) {
	r := &Running{Cluster: Cluster{Bin: bin, Dir: dir, Network: network}}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Stop())
		}
	}()
	// A sample ends when it has measured, and does not wait for its disks to be detached.
	r.stops = append(r.stops, func() error { return loopdev.New().DetachBelow(dir) })
	machine, err := startMachine(ctx, bin, dir, network)
	if err != nil {
		return nil, err
	}
	r.stops = append(r.stops, machine.stop)
	r.Runtime, r.RuntimePID, r.Image = machine.endpoint(), machine.PID, machine.image
	r.CgroupRoot = "/" + machine.config.Bridge
	plane, err := StartControlPlane(ctx, bin, dir, network, NodeName)
	if err != nil {
		return nil, err
	}
	r.stops = append(r.stops, plane.Stop)
	r.DataDir = plane.DataDir
	return r, nil
}

// Env returns the environment by which samples find the cluster.
func (r *Running) Env() (map[string]string, error) {
	text, err := json.Marshal(r.Cluster)
	if err != nil {
		return nil, err
	}
	return map[string]string{envCluster: string(text)}, nil
}

// Stop stops everything in reverse order.
func (r *Running) Stop() error {
	var errs []error
	for i := len(r.stops) - 1; i >= 0; i-- {
		errs = append(errs, r.stops[i]())
	}
	r.stops = nil
	return errors.Join(errs...)
}
