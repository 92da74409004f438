package kuberuntime

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/network"
)

// EnsureLogDir creates the directory of a container's log files, or with an empty container name the Pod's own.
func EnsureLogDir(podLogsDir string, pod *corev1.Pod, containerName string) error {
	dir := filepath.Join(PodLogsDir(podLogsDir, pod.Namespace, pod.Name, pod.UID), containerName)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make log directory of container %q: %w", containerName, err)
	}
	return nil
}

// LastAttemptInLogs returns the highest restart count among the files of the container's log directory, rotated ones
// included. With it a count continues after the runtime has lost all instances.
func LastAttemptInLogs(podLogsDir string, pod *corev1.Pod, containerName string) (uint32, bool) {
	dir := filepath.Join(PodLogsDir(podLogsDir, pod.Namespace, pod.Name, pod.UID), containerName)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, false
	}
	highest, found := uint32(0), false
	for _, entry := range entries {
		number, rest, ok := strings.Cut(entry.Name(), ".log")
		if !ok || entry.IsDir() || rest != "" && rest[0] != '.' {
			continue
		}
		n, err := strconv.ParseUint(number, 10, 31)
		if err == nil {
			highest, found = max(highest, uint32(n)), true
		}
	}
	return highest, found
}

// RemoveUnusedLog removes the empty log file of an instance that never ran: restart counts are read from the names of
// log files, and this number is used again. It is called before the instance is removed.
func RemoveUnusedLog(c *container.ContainerStatus) error {
	if c.State != container.StateCreated || c.LogPath == "" {
		return nil
	}
	if info, err := os.Lstat(c.LogPath); err != nil || !info.Mode().IsRegular() || info.Size() > 0 {
		return nil // it does not exist, or has content
	}
	if err := os.Remove(c.LogPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove unused log of container %q: %w", c.Name, err)
	}
	return nil
}

// HostsPath returns the path of the hosts file below a Pod's directory, which the Pod's containers may write to.
func HostsPath(podDir string) string { return filepath.Join(podDir, "etc-hosts") }

// EnsureHostsFile writes the Pod's hosts file below its directory and returns its path, or "" for a Pod that has no
// address yet. nodeHosts is the node's own file, for a Pod on the host's network.
func (b *Builder) EnsureHostsFile(logger *slog.Logger, pod *corev1.Pod, podDir, nodeHosts string, podIPs []string) (string, error) {
	path := HostsPath(podDir)
	if pod.Spec.HostNetwork {
		content, err := os.ReadFile(nodeHosts)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("read the node's hosts file %q: %w", nodeHosts, err)
		}
		return path, network.WriteHosts(logger, path, network.HostNetworkHostsFile(pod, content))
	}
	if len(podIPs) == 0 {
		return "", nil
	}
	hostname, domain, err := network.Hostname(pod, b.config.DNS.ClusterDomain)
	if err != nil {
		return "", err
	}
	return path, network.WriteHosts(logger, path, network.HostsFile(pod, podIPs, hostname, domain))
}
