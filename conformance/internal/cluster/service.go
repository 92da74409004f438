package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// kubeletUnit is the systemd unit of the kubelet, under the name that specs stop. It may be started before the cluster has written its
// kubeconfig: then it is started again until it has.
const kubeletUnit = `[Unit]
Description=kubelet of the cluster in %[1]s
StartLimitIntervalSec=0
[Service]
ExecStart=%[2]s kubelet --config %[3]s --kubeconfig %[4]s --root-dir %[6]s --node-ip %[5]s
Restart=always
RestartSec=1
KillMode=process
`

// kubeletConfig is its configuration: where the cluster's containerd and certificates are.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://%[1]s/containerd.sock
cgroupRoot: /berth-%[2]s
cgroupDriver: cgroupfs
podLogsDir: %[3]s/log/pods
failSwapOn: false
address: %[4]s
healthzPort: 0
tlsCertFile: %[3]s/pki/kubelet-server.crt
tlsPrivateKeyFile: %[3]s/pki/kubelet-server.key
authentication: {x509: {clientCAFile: %[3]s/pki/ca.crt}}
`

const (
	kubeletService  = "kubelet.service"
	kubeletUnitPath = "/run/systemd/system/" + kubeletService
)

// startKubeletService makes the cluster's kubelet a service of systemd and starts it. It waits for nothing.
func (c Config) startKubeletService(ctx context.Context) error {
	kubeconfig := filepath.Join(c.DataDir, "kubeconfigs", "node.kubeconfig")
	if err := os.Remove(kubeconfig); err != nil && !errors.Is(err, fs.ErrNotExist) { // an earlier cluster's
		return fmt.Errorf("start the kubelet: %w", err)
	}
	sum := sha256.Sum256([]byte(c.DataDir)) // so does berth name /run/berth/ID
	id := hex.EncodeToString(sum[:4])
	config := filepath.Join(filepath.Dir(c.Log), "kubelet.yaml")
	err := errors.Join(
		os.WriteFile(config, fmt.Appendf(nil, kubeletConfig, "/run/berth/"+id, id, c.DataDir, c.APIAddress), 0o600),
		os.WriteFile(kubeletUnitPath, fmt.Appendf(nil, kubeletUnit,
			c.DataDir, filepath.Join(c.Bin, "berth"), config, kubeconfig, c.APIAddress, c.kubeletDir()), 0o600))
	if err != nil {
		return fmt.Errorf("start the kubelet: %w", err)
	}
	return errors.Join(systemctl(ctx, "daemon-reload"), systemctl(ctx, "start", kubeletService))
}

// stopKubeletService stops it and removes it.
func stopKubeletService(ctx context.Context) error {
	return errors.Join(systemctl(ctx, "stop", kubeletService), os.Remove(kubeletUnitPath), systemctl(ctx, "daemon-reload"))
}

func systemctl(ctx context.Context, arguments ...string) error {
	if out, err := exec.CommandContext(ctx, "systemctl", arguments...).CombinedOutput(); err != nil {
		return fmt.Errorf("systemctl %v: %w: %s", arguments, err, bytes.TrimSpace(out))
	}
	return nil
}
