//go:build integration

package containerd_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestUserNamespace runs a Pod whose root is unprivileged on the machine: hostUsers false needs no configuration, only
// directories that others may pass on the way to the Pod's root.
func TestUserNamespace(t *testing.T) {
	n := newFixture(t)
	n.start(t)
	n.importImages(t)
	handlers, err := n.Status(t.Context(), &runtimeapi.StatusRequest{})
	require.NoError(t, err)
	require.NotEmpty(t, handlers.RuntimeHandlers)
	t.Logf("runtime handlers: %v", handlers.RuntimeHandlers)

	const first = 1 << 20
	mapping := []*runtimeapi.IDMapping{{HostId: first, ContainerId: 0, Length: 65536}}
	config := n.sandbox("userns", t.TempDir(), false)
	config.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtimeapi.UserNamespace{
		Mode: runtimeapi.NamespaceMode_POD, Uids: mapping, Gids: mapping,
	}
	data := volume(t)
	p := n.run(t, config, data)
	require.Contains(t, get(t, n.firstPod()+"/"), "visit")

	// The volume is mounted with the same mapping: its files belong to the same user on the machine and in the Pod.
	count, err := os.Stat(filepath.Join(data, "count"))
	require.NoError(t, err)
	require.EqualValues(t, 65532, count.Sys().(*syscall.Stat_t).Uid)
	info, err := n.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: p.container, Verbose: true})
	require.NoError(t, err)
	_, after, ok := strings.Cut(info.Info["info"], `"pid":`)
	require.True(t, ok)
	pid, _, _ := strings.Cut(after, ",")
	mapped, err := os.ReadFile(filepath.Join("/proc", pid, "uid_map"))
	require.NoError(t, err)
	require.Equal(t, []string{"0", "1048576", "65536"}, strings.Fields(string(mapped)))

	n.end(t, p)
	n.requireNothingLeft(t)
	n.stop(t)
	n.clean(t)
}
