package volumemanager_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/mounts"
	"github.com/berth-dev/berth/volume/subpath"
)

var (
	configMaps = corev1.SchemeGroupVersion.WithResource("configmaps")
	secrets    = corev1.SchemeGroupVersion.WithResource("secrets")
	claims     = corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
)

func TestMountedVolumesFollowTheirObjects(t *testing.T) {
	w := newWorld(t)
	w.create(configMap("conf", "1"), secret("sec", "1"))
	p := pod("a", configMapVolume("conf", "conf"), secretVolume("sec", "sec"), labelsVolume("lab"), tokenVolume("tok"))
	p.Labels = map[string]string{"v": "1"}
	require.NoError(t, w.Mount(t.Context(), p))
	require.ElementsMatch(t, []string{"configmaps", "secrets"}, []string{<-w.watching, <-w.watching})
	token := w.read("a", "tok", "token")

	require.NoError(t, w.client.Tracker().Update(configMaps, configMap("conf", "2"), "ns"))
	w.await("config map file, while the clock stands still", func() bool { return w.read("a", "conf", "k") == "2" })

	updated := p.DeepCopy()
	updated.Labels["v"] = "2"
	w.PodUpdated(updated)
	w.await("labels file", func() bool { return w.read("a", "lab", "labels") == `v="2"` })

	w.step(8 * time.Minute) // 80 % of the token's life
	w.await("token file", func() bool { return w.read("a", "tok", "token") != token })
	require.NoError(t, w.Unmount(t.Context(), "a"))
}

func TestVolumeKeepsItsFilesWhileItsObjectIsGone(t *testing.T) {
	w := newWorld(t)
	w.create(configMap("conf", "1"))
	require.NoError(t, w.Mount(t.Context(), pod("a", configMapVolume("conf", "conf"))))
	w.awaitWatch("configmaps")
	require.NoError(t, w.client.Tracker().Delete(configMaps, "ns", "conf"))
	require.Contains(t, w.nextEvent(), `configmaps "conf" not found`)
	require.Equal(t, "1", w.read("a", "conf", "k"))
	w.create(configMap("conf", "2"))
	w.await("the new object", func() bool { return w.read("a", "conf", "k") == "2" })
	require.NoError(t, w.Unmount(t.Context(), "a"))
}

func TestNewProcessTakesOverWhatIsMounted(t *testing.T) {
	w := newWorld(t)
	claim, pv, dir := w.claim("c")
	w.create(configMap("conf", "1"), secret("sec", "1"), claim, pv, hereNode())
	p := pod("a", emptyDir("disk"), memory("mem"), configMapVolume("conf", "conf"), secretVolume("sec", "sec"), claimVolume("data", "c"))
	require.NoError(t, w.Mount(t.Context(), p))
	for _, name := range []string{"disk", "mem", "data"} {
		require.NoError(t, os.WriteFile(filepath.Join(w.Volumes("a")[name].Path, "f"), []byte(name), 0o644))
	}
	volumes := w.Volumes("a")
	mounted, err := mounts.ListBelow(w.root)
	require.NoError(t, err)

	w.restart()
	require.NoError(t, w.client.Tracker().Update(secrets, secret("sec", "changed meanwhile"), "ns"))
	deleted := claim.DeepCopy()
	now := metav1.Now()
	deleted.DeletionTimestamp = &now
	require.NoError(t, w.client.Tracker().Update(claims, deleted, "ns"))
	require.NoError(t, w.Mount(t.Context(), p), "a claim that is being deleted stays usable for a Pod that uses it")
	require.Equal(t, len(volumes), len(w.Volumes("a")))
	for name, v := range volumes {
		require.Equal(t, v.Path, w.Volumes("a")[name].Path)
	}
	again, err := mounts.ListBelow(w.root)
	require.NoError(t, err)
	require.Equal(t, mounted, again, "nothing may be mounted twice")
	for _, name := range []string{"disk", "mem", "data"} {
		require.Equal(t, name, w.read("a", name, "f"))
	}
	require.Equal(t, "changed meanwhile", w.read("a", "sec", "k"))

	w.restart()
	require.NoError(t, w.Unmount(t.Context(), "a"), "what is on disk is enough to know what to take down")
	w.gone("a")
	require.FileExists(t, filepath.Join(dir, "f"))
}

func TestCleanStopKeepsDataAsARebootDoes(t *testing.T) {
	w := newWorld(t)
	claim, pv, _ := w.claim("c")
	w.create(claim, pv, hereNode())
	p := pod("a", emptyDir("disk"), memory("mem"), claimVolume("data", "c"))
	require.NoError(t, w.Mount(t.Context(), p))
	for _, name := range []string{"disk", "mem", "data"} {
		require.NoError(t, os.WriteFile(filepath.Join(w.Volumes("a")[name].Path, "f"), []byte(name), 0o644))
	}
	require.NoError(t, w.UnmountAll(t.Context()))
	left, err := mounts.ListBelow(w.root)
	require.NoError(t, err)
	require.Empty(t, left)
	require.Error(t, w.Mount(t.Context(), p), "nothing is mounted after the end")

	w.restart()
	require.NoError(t, w.Mount(t.Context(), p))
	require.Equal(t, "disk", w.read("a", "disk", "f"))
	require.Equal(t, "data", w.read("a", "data", "f"))
	require.Contains(t, w.read("a", "mem", "f"), "no such file")
	require.NoError(t, w.Unmount(t.Context(), "a"))
}

func TestOrphansGoAndNothingElse(t *testing.T) {
	w := newWorld(t)
	claim, pv, dir := w.claim("c")
	w.create(claim, pv, hereNode())
	for _, uid := range []types.UID{"keep", "orphan", "strange"} {
		require.NoError(t, w.Mount(t.Context(), pod(uid, emptyDir("disk"), memory("mem"), claimVolume("data", "c"))))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), nil, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(volume.PodDir(w.root, "orphan"), "etc-hosts"), nil, 0o644))
	strange := filepath.Join(volume.PodVolumesDir(w.root, "strange"), "example.com~unknown", "v")
	require.NoError(t, os.MkdirAll(strange, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(strange, "precious"), nil, 0o644))

	w.restart()
	keep := func(uid types.UID) bool { return uid == "keep" }
	w.await("the root is ready", func() bool { _, err := os.Stat(w.root); return err == nil })
	err := w.CleanupOrphans(t.Context(), keep)
	require.ErrorContains(t, err, "clean up after pod strange")
	require.ErrorContains(t, err, "holds files")
	require.NoDirExists(t, volume.PodDir(w.root, "orphan"))
	require.FileExists(t, filepath.Join(strange, "precious"))
	require.FileExists(t, filepath.Join(dir, "f"))
	require.DirExists(t, volume.Dir(w.root, "keep", "kubernetes.io/empty-dir", "disk"))

	require.NoError(t, os.Remove(filepath.Join(strange, "precious")))
	require.NoError(t, w.CleanupOrphans(t.Context(), keep))
	require.NoDirExists(t, volume.PodDir(w.root, "strange"))
	require.NoError(t, w.Unmount(t.Context(), "keep"))
}

func TestBusyVolumeIsTriedAgain(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.Mount(t.Context(), pod("a", memory("mem"), emptyDir("disk"))))
	file, err := os.Create(filepath.Join(w.Volumes("a")["mem"].Path, "open"))
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- w.Unmount(t.Context(), "a") }()
	require.Contains(t, w.nextEvent(), "FailedUnmount")
	require.NoDirExists(t, volume.Dir(w.root, "a", "kubernetes.io/empty-dir", "disk"), "the others do not wait")
	require.ErrorContains(t, w.RemovePodDir("a"), "still has volumes")
	require.NoError(t, file.Close())
	w.step(500 * time.Millisecond)
	require.NoError(t, w.result(done))
	w.gone("a")

	require.NoError(t, w.Mount(t.Context(), pod("b", memory("mem"))))
	file, err = os.Create(filepath.Join(w.Volumes("b")["mem"].Path, "open"))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- w.Unmount(ctx, "b") }()
	w.nextEvent()
	cancel()
	require.ErrorContains(t, w.result(done), "busy")
	require.NoError(t, file.Close())
	require.NoError(t, w.Unmount(t.Context(), "b"))
}

func TestSubPathsGoWithTheirVolumes(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.Mount(t.Context(), pod("a", memory("mem"))))
	part, err := w.SubPaths().Prepare(t.Context(), subpath.Request{
		PodDir: volume.PodDir(w.root, "a"), VolumeName: "mem", VolumePath: w.Volumes("a")["mem"].Path,
		SubPath: "x/y", Container: "main",
	})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(part, "f"), nil, 0o644))
	require.FileExists(t, filepath.Join(w.Volumes("a")["mem"].Path, "x/y/f"))
	w.restart()
	require.NoError(t, w.Unmount(t.Context(), "a"))
	w.gone("a")
}

func TestManyPodsComeAndGo(t *testing.T) {
	w := newWorld(t)
	w.create(configMap("conf", "1"), secret("sec", "1"))
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			for round := range 5 {
				uid := types.UID(fmt.Sprintf("%d-%d", i, round))
				p := pod(uid, emptyDir("disk"), memory("mem"), configMapVolume("conf", "conf"), secretVolume("sec", "sec"), tokenVolume("tok"))
				if err := w.Mount(t.Context(), p); err != nil {
					t.Errorf("mount: %v", err)
				}
				w.PodUpdated(p)
				if n := len(w.Volumes(uid)); n != 5 {
					t.Errorf("%d volumes", n)
				}
				if err := w.Unmount(t.Context(), uid); err != nil {
					t.Errorf("unmount: %v", err)
				}
				if err := w.RemovePodDir(uid); err != nil {
					t.Errorf("remove: %v", err)
				}
			}
		})
	}
	wg.Wait()
	w.forgotten()
	require.Zero(t, w.tokens.Kept())
	entries, err := os.ReadDir(volume.PodsDir(w.root))
	require.NoError(t, err)
	require.Empty(t, entries)
}
