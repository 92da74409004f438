package kuberuntime_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
)

// TestTerminationLogsAreBounded cuts and removes a message of 1 MiB, and neither the next one's nor a file that the container had mounted
// at the path of its message.
func TestTerminationLogsAreBounded(t *testing.T) {
	pods := t.TempDir()
	podDir := filepath.Join(pods, "uid")
	first, err := kuberuntime.CreateTerminationLog(podDir, "main", 0)
	require.NoError(t, err)
	second, err := kuberuntime.CreateTerminationLog(podDir, "main", 1)
	require.NoError(t, err)
	users := filepath.Join(podDir, "volumes", "kubernetes.io~empty-dir", "v")
	require.NoError(t, os.MkdirAll(filepath.Dir(users), 0o755))
	content := strings.Repeat("x", 1<<20) + strings.Repeat("end.", 1024)
	for _, path := range []string{first, second, users} {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	status := func(path string) *container.ContainerStatus {
		return &container.ContainerStatus{Name: "main", TerminationMessagePath: "/dev/termination-log",
			Mounts: []*runtimeapi.Mount{{ContainerPath: "/dev/termination-log", HostPath: path}}}
	}
	for range 2 {
		require.NoError(t, kuberuntime.CutTerminationLog(pods, status(first), 4096))
		require.NoError(t, kuberuntime.CutTerminationLog(pods, status(users), 4096))
		left, err := os.ReadFile(first)
		require.NoError(t, err)
		require.Equal(t, strings.Repeat("end.", 1024), string(left))
	}
	require.NoError(t, kuberuntime.RemoveTerminationLog(pods, status(first)))
	require.NoError(t, kuberuntime.RemoveTerminationLog(pods, status(first)), "it is removed already")
	require.NoError(t, kuberuntime.CutTerminationLog(pods, status(first), 4096))
	require.NoError(t, kuberuntime.RemoveTerminationLog(pods, status(users)))
	require.NoFileExists(t, first)
	for _, path := range []string{second, users} {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.EqualValues(t, len(content), info.Size(), path)
	}
	require.NoError(t, os.Remove(second))
	require.NoError(t, os.Symlink(users, second))
	require.Error(t, kuberuntime.CutTerminationLog(pods, status(second), 4096), "links are not followed")
}
