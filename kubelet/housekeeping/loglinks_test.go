package housekeeping

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/cri/fake"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/logs"
	"github.com/berth-dev/berth/kubelet/podworker"
)

// TestLinksAndLogsGoWithTheirPods creates and removes containers through a runtime whose logs are linked, and restarts the
// kubelet in between.
func TestLinksAndLogsGoWithTheirPods(t *testing.T) {
	base := t.TempDir()
	pods, dir := filepath.Join(base, "pods"), filepath.Join(base, "containers")
	fakeRuntime := fake.New(clocktesting.NewFakePassiveClock(time.Now()))
	start := func() *Manager {
		links := logs.NewLinks(dir, pods, container.RealOS{})
		runtime := LinkLogs(fakeRuntime, links, slog.New(slog.DiscardHandler))
		return &Manager{config: Config{PodLogsDir: pods}, deps: Deps{Runtime: runtime, Links: links, Workers: &podworker.Manager{}}}
	}
	labels := map[string]string{
		container.PodNameLabel: "web", container.PodNamespaceLabel: "ns", container.PodUIDLabel: "u",
		container.ContainerNameLabel: "app",
	}
	target := filepath.Join(kuberuntime.PodLogsDir(pods, "ns", "web", "u"), kuberuntime.LogPath("app", 2))
	m := start()
	box, err := m.deps.Runtime.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "ns", Uid: "u"}, Labels: labels}})
	require.NoError(t, err)
	create := func(m *Manager) string {
		made, err := m.deps.Runtime.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
			PodSandboxId:  box.PodSandboxId,
			SandboxConfig: &runtimeapi.PodSandboxConfig{LogDirectory: kuberuntime.PodLogsDir(pods, "ns", "web", "u")},
			Config: &runtimeapi.ContainerConfig{
				Metadata: &runtimeapi.ContainerMetadata{Name: "app", Attempt: 2}, Labels: labels,
				Annotations: map[string]string{container.RestartCountAnnotation: "2"},
				LogPath:     kuberuntime.LogPath("app", 2),
			},
		})
		require.NoError(t, err)
		return made.ContainerId
	}
	link := func(id string) string { return filepath.Join(dir, "web_ns_app-"+id+".log") }
	id := create(m)
	got, err := os.Readlink(link(id))
	require.NoError(t, err)
	require.Equal(t, target, got)

	// The kubelet is killed: one link is of a container that is removed meanwhile, and one was never created.
	require.NoError(t, os.Symlink(target, link("gone")))
	require.NoError(t, os.Remove(link(id)))
	m = start()
	require.NoError(t, m.reconcileLogLinks(t.Context()))
	got, err = os.Readlink(link(id))
	require.NoError(t, err)
	require.Equal(t, target, got, "created from what the runtime lists, as at the start")
	_, err = os.Lstat(link("gone"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = m.deps.Runtime.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
	require.NoError(t, err)
	_, err = os.Lstat(link(id))
	require.ErrorIs(t, err, os.ErrNotExist, "it is removed with its container")

	// Logs of a Pod that has no worker.
	require.NoError(t, os.MkdirAll(filepath.Dir(target), 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(pods, "foreign"), 0o755))
	require.NoError(t, m.removeOrphanLogs())
	require.NoDirExists(t, filepath.Dir(filepath.Dir(target)))
	require.DirExists(t, filepath.Join(pods, "foreign"), "not the name of a Pod's log directory")

	none := &Manager{config: Config{PodLogsDir: pods}, deps: Deps{Runtime: fakeRuntime}}
	require.NoError(t, none.reconcileLogLinks(t.Context()), "without a directory nothing is linked")
	require.Nil(t, logs.NewLinks(filepath.Join(base, "absent"), pods, container.RealOS{}).Reconcile(nil))
}
