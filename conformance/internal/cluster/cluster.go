package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// Config says where the cluster lies. All fields but APIAddress are required.
type Config struct {
	// Bin is the directory with berth and all that it starts.
	Bin string
	// DataDir is the cluster's alone: an earlier cluster in it is deleted.
	DataDir string
	// APIPort, PodCIDR and ServiceCIDR must be used by no other cluster of the machine.
	APIPort              int
	PodCIDR, ServiceCIDR string
	// APIAddress is this machine's address for other machines of the cluster; empty if there are none.
	APIAddress string
	// Runtime is the runtime of the nodes' Pods; empty for berth's default.
	Runtime string
	// KubeletRoot is the directory of Pods' files; empty for the one in DataDir.
	KubeletRoot string
	// KubeletService makes the kubelet the systemd service "kubelet", which specs can stop and which needs an APIAddress; else berth runs it.
	KubeletService bool
	// Log is the file that takes what berth prints.
	Log string
	// Timeout bounds the start and the stop.
	Timeout time.Duration
}

// readyText is part of the line that berth prints when the cluster is ready.
const readyText = "is ready after"

// Cluster is a running `berth up`.
type Cluster struct {
	*process
	config Config
}

// Start deletes what an earlier run left in the data directory, starts the cluster and returns once it is ready. ctx
// bounds the start alone: what has started runs until the caller calls Stop.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	c := &Cluster{config: config}
	argv := []string{
		c.Berth(), "up", "--reset", "--unsafe-no-fsync", "--bin-dir", config.Bin,
		"--data-dir", config.DataDir, "--api-port", strconv.Itoa(config.APIPort),
		"--pod-cidr", config.PodCIDR, "--service-cidr", config.ServiceCIDR,
	}
	argv = append(argv, config.runtimeFlag()...)
	if config.APIAddress != "" {
		argv = append(argv, "--api-address", config.APIAddress)
	}
	if config.KubeletRoot != "" {
		argv = append(argv, "--kubelet-root-dir", config.KubeletRoot)
	}
	if config.KubeletService {
		argv = append(argv, "--without", "kubelet")
		if err := config.startKubeletService(ctx); err != nil {
			return nil, err
		}
	}
	var err error
	c.process, err = startProcess(ctx, "cluster", config.Log, config.Timeout, argv...)
	if err != nil {
		return nil, errors.Join(err, config.stopKubelet(ctx))
	}
	return c, nil
}

// Stop stops the cluster.
func (c *Cluster) Stop() error {
	return errors.Join(c.config.stopKubelet(context.Background()), c.process.Stop())
}

// stopKubelet stops the kubelet if it is a service.
func (c Config) stopKubelet(ctx context.Context) error {
	if !c.KubeletService {
		return nil
	}
	return stopKubeletService(context.WithoutCancel(ctx))
}

func (c Config) runtimeFlag() []string {
	if c.Runtime == "" {
		return nil
	}
	return []string{"--runtime", c.Runtime}
}

// Berth is the path of berth.
func (c *Cluster) Berth() string { return filepath.Join(c.config.Bin, "berth") }

// Kubeconfig is the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.config.DataDir, "admin.kubeconfig") }

// KubeletDir is the directory of Pods' files.
func (c *Cluster) KubeletDir() string { return c.config.kubeletDir() }

func (c Config) kubeletDir() string {
	if c.KubeletRoot != "" {
		return c.KubeletRoot
	}
	return filepath.Join(c.DataDir, "kubelet")
}

// Registries is the directory of the containerd's registry configuration.
func (c *Cluster) Registries() string {
	return filepath.Join(c.config.DataDir, "containerd", "certs.d")
}

// Import imports the images of an OCI layout into the cluster.
func (c *Cluster) Import(ctx context.Context, layout string) error {
	return importImages(ctx, c.Berth(), c.config.DataDir, layout)
}

func importImages(ctx context.Context, berth, dataDir, layout string) error {
	cmd := exec.CommandContext(ctx, berth, "--data-dir", dataDir, "images", "import", layout)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("import images: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// Kubectl writes a script that is kubectl for this cluster and returns its path.
func (c *Cluster) Kubectl(dir string) (string, error) {
	path := filepath.Join(dir, "kubectl")
	script := fmt.Sprintf("#!/bin/sh\nexec '%s' --data-dir '%s' kubectl \"$@\"\n", c.Berth(), c.config.DataDir)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		return "", fmt.Errorf("write kubectl: %w", err)
	}
	return path, nil
}
