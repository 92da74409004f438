package kubelet

import (
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

// TestLinksAndLogsGoWithTheirPods makes and removes containers through a runtime whose logs are linked, and lets a process
// die in between.
func TestLinksAndLogsGoWithTheirPods(t *testing.T) {
	base := t.TempDir()
	pods, dir := filepath.Join(base, "pods"), filepath.Join(base, "containers")
	held := fake.New(clocktesting.NewFakePassiveClock(time.Now()))
	boot := func() *Kubelet {
		k := &Kubelet{cfg: Config{PodLogsDir: pods, ContainerLogsDir: dir}, deps: Deps{Runtime: held}}
		require.NoError(t, k.connect())
		return k
	}
	labels := map[string]string{
		container.PodNameLabel: "web", container.PodNamespaceLabel: "ns", container.PodUIDLabel: "u",
		container.ContainerNameLabel: "app",
	}
	target := filepath.Join(kuberuntime.PodLogsDir(pods, "ns", "web", "u"), kuberuntime.LogPath("app", 2))
	k := boot()
	box, err := k.runtime.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "ns", Uid: "u"}, Labels: labels}})
	require.NoError(t, err)
	create := func(k *Kubelet) string {
		made, err := k.runtime.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
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
	id := create(k)
	got, err := os.Readlink(link(id))
	require.NoError(t, err)
	require.Equal(t, target, got)

	// The process dies: one link of a container that goes meanwhile, and one that was never made.
	require.NoError(t, os.Symlink(target, link("gone")))
	require.NoError(t, os.Remove(link(id)))
	k = boot()
	require.NoError(t, k.settleLinks(t.Context()))
	got, err = os.Readlink(link(id))
	require.NoError(t, err)
	require.Equal(t, target, got, "made from what the runtime tells, as at the start")
	_, err = os.Lstat(link("gone"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = k.runtime.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
	require.NoError(t, err)
	_, err = os.Lstat(link(id))
	require.ErrorIs(t, err, os.ErrNotExist, "it goes with its container")

	// Logs of a Pod that nobody has a worker for.
	require.NoError(t, os.MkdirAll(filepath.Dir(target), 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(pods, "foreign"), 0o755))
	k.workers = &podworker.Manager{}
	require.NoError(t, k.cleanLogs())
	require.NoDirExists(t, filepath.Dir(filepath.Dir(target)))
	require.DirExists(t, filepath.Join(pods, "foreign"), "not a name of ours")

	none := &Kubelet{cfg: Config{PodLogsDir: pods}, deps: Deps{Runtime: held}}
	require.NoError(t, none.connect())
	require.NoError(t, none.settleLinks(t.Context()), "without a directory nothing is linked")
	require.Nil(t, logs.NewLinks(filepath.Join(base, "absent"), pods).Reconcile(nil))
}
