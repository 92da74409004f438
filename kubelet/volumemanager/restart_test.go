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
	f := newFixture(t)
	f.create(configMap("conf", "1"), secret("sec", "1"))
	p := pod("a", configMapVolume("conf", "conf"), secretVolume("sec", "sec"), labelsVolume("lab"), tokenVolume("tok"))
	p.Labels = map[string]string{"v": "1"}
	require.NoError(t, f.Mount(t.Context(), p))
	require.ElementsMatch(t, []string{"configmaps", "secrets"}, []string{<-f.openedWatches, <-f.openedWatches})
	token := f.readFile("a", "tok", "token")

	require.NoError(t, f.client.Tracker().Update(configMaps, configMap("conf", "2"), "ns"))
	f.eventually("config map file, while the clock stands still", func() bool { return f.readFile("a", "conf", "k") == "2" })

	updated := p.DeepCopy()
	updated.Labels["v"] = "2"
	f.PodUpdated(updated)
	f.eventually("labels file", func() bool { return f.readFile("a", "lab", "labels") == `v="2"` })

	f.step(8 * time.Minute) // 80 % of the token's life
	f.eventually("token file", func() bool { return f.readFile("a", "tok", "token") != token })
	require.NoError(t, f.Unmount(t.Context(), "a"))
}

func TestVolumeKeepsItsFilesWhileItsObjectIsGone(t *testing.T) {
	f := newFixture(t)
	f.create(configMap("conf", "1"))
	require.NoError(t, f.Mount(t.Context(), pod("a", configMapVolume("conf", "conf"))))
	f.waitForWatch("configmaps")
	require.NoError(t, f.client.Tracker().Delete(configMaps, "ns", "conf"))
	require.Contains(t, f.nextEvent(), `configmaps "conf" not found`)
	require.Equal(t, "1", f.readFile("a", "conf", "k"))
	f.create(configMap("conf", "2"))
	f.eventually("the new object", func() bool { return f.readFile("a", "conf", "k") == "2" })
	require.NoError(t, f.Unmount(t.Context(), "a"))
}

func TestNewProcessTakesOverWhatIsMounted(t *testing.T) {
	f := newFixture(t)
	claim, pv, dir := f.newLocalClaim("c")
	f.create(configMap("conf", "1"), secret("sec", "1"), claim, pv, newNode())
	p := pod("a", emptyDir("disk"), memory("mem"), configMapVolume("conf", "conf"), secretVolume("sec", "sec"), claimVolume("data", "c"))
	require.NoError(t, f.Mount(t.Context(), p))
	for _, name := range []string{"disk", "mem", "data"} {
		require.NoError(t, os.WriteFile(filepath.Join(f.Volumes("a")[name].Path, "f"), []byte(name), 0o644))
	}
	volumes := f.Volumes("a")
	mounted, err := mounts.ListBelow(f.root)
	require.NoError(t, err)

	f.restart()
	require.NoError(t, f.client.Tracker().Update(secrets, secret("sec", "changed meanwhile"), "ns"))
	deleted := claim.DeepCopy()
	now := metav1.Now()
	deleted.DeletionTimestamp = &now
	require.NoError(t, f.client.Tracker().Update(claims, deleted, "ns"))
	require.NoError(t, f.Mount(t.Context(), p), "a claim that is being deleted stays usable for a Pod that uses it")
	require.Equal(t, len(volumes), len(f.Volumes("a")))
	for name, v := range volumes {
		require.Equal(t, v.Path, f.Volumes("a")[name].Path)
	}
	again, err := mounts.ListBelow(f.root)
	require.NoError(t, err)
	require.Equal(t, mounted, again, "nothing may be mounted twice")
	for _, name := range []string{"disk", "mem", "data"} {
		require.Equal(t, name, f.readFile("a", name, "f"))
	}
	require.Equal(t, "changed meanwhile", f.readFile("a", "sec", "k"))

	f.restart()
	require.NoError(t, f.Unmount(t.Context(), "a"), "what is on disk is enough to know what to take down")
	f.requireUnmounted("a")
	require.FileExists(t, filepath.Join(dir, "f"))
}

func TestCleanStopKeepsDataAsARebootDoes(t *testing.T) {
	f := newFixture(t)
	claim, pv, _ := f.newLocalClaim("c")
	f.create(claim, pv, newNode())
	p := pod("a", emptyDir("disk"), memory("mem"), claimVolume("data", "c"))
	require.NoError(t, f.Mount(t.Context(), p))
	for _, name := range []string{"disk", "mem", "data"} {
		require.NoError(t, os.WriteFile(filepath.Join(f.Volumes("a")[name].Path, "f"), []byte(name), 0o644))
	}
	require.NoError(t, f.UnmountAll(t.Context()))
	left, err := mounts.ListBelow(f.root)
	require.NoError(t, err)
	require.Empty(t, left)
	require.Error(t, f.Mount(t.Context(), p), "nothing is mounted after the end")

	f.restart()
	require.NoError(t, f.Mount(t.Context(), p))
	require.Equal(t, "disk", f.readFile("a", "disk", "f"))
	require.Equal(t, "data", f.readFile("a", "data", "f"))
	require.Contains(t, f.readFile("a", "mem", "f"), "no such file")
	require.NoError(t, f.Unmount(t.Context(), "a"))
}

func TestOrphansGoAndNothingElse(t *testing.T) {
	f := newFixture(t)
	claim, pv, dir := f.newLocalClaim("c")
	f.create(claim, pv, newNode())
	for _, uid := range []types.UID{"keep", "orphan", "strange"} {
		require.NoError(t, f.Mount(t.Context(), pod(uid, emptyDir("disk"), memory("mem"), claimVolume("data", "c"))))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), nil, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(volume.PodDir(f.root, "orphan"), "etc-hosts"), nil, 0o644))
	strange := filepath.Join(volume.PodVolumesDir(f.root, "strange"), "example.com~unknown", "v")
	require.NoError(t, os.MkdirAll(strange, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(strange, "precious"), nil, 0o644))

	f.restart()
	keep := func(uid types.UID) bool { return uid == "keep" }
	f.eventually("the root is ready", func() bool { _, err := os.Stat(f.root); return err == nil })
	err := f.CleanupOrphans(t.Context(), keep)
	require.ErrorContains(t, err, "clean up pod strange")
	require.ErrorContains(t, err, "holds files")
	require.NoDirExists(t, volume.PodDir(f.root, "orphan"))
	require.FileExists(t, filepath.Join(strange, "precious"))
	require.FileExists(t, filepath.Join(dir, "f"))
	require.DirExists(t, volume.Dir(f.root, "keep", "kubernetes.io/empty-dir", "disk"))

	require.NoError(t, os.Remove(filepath.Join(strange, "precious")))
	require.NoError(t, f.CleanupOrphans(t.Context(), keep))
	require.NoDirExists(t, volume.PodDir(f.root, "strange"))
	require.NoError(t, f.Unmount(t.Context(), "keep"))
}

func TestBusyVolumeIsTriedAgain(t *testing.T) {
	f := newFixture(t)
	require.NoError(t, f.Mount(t.Context(), pod("a", memory("mem"), emptyDir("disk"))))
	file, err := os.Create(filepath.Join(f.Volumes("a")["mem"].Path, "open"))
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- f.Unmount(t.Context(), "a") }()
	require.Contains(t, f.nextEvent(), "FailedUnmount")
	require.NoDirExists(t, volume.Dir(f.root, "a", "kubernetes.io/empty-dir", "disk"), "the others do not wait")
	require.ErrorContains(t, f.RemovePodDir("a"), "still has volumes")
	require.NoError(t, file.Close())
	f.step(500 * time.Millisecond)
	require.NoError(t, f.result(done))
	f.requireUnmounted("a")

	require.NoError(t, f.Mount(t.Context(), pod("b", memory("mem"))))
	file, err = os.Create(filepath.Join(f.Volumes("b")["mem"].Path, "open"))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- f.Unmount(ctx, "b") }()
	f.nextEvent()
	cancel()
	require.ErrorContains(t, f.result(done), "busy")
	require.NoError(t, file.Close())
	require.NoError(t, f.Unmount(t.Context(), "b"))
}

func TestSubPathsGoWithTheirVolumes(t *testing.T) {
	f := newFixture(t)
	require.NoError(t, f.Mount(t.Context(), pod("a", memory("mem"))))
	part, err := f.SubPaths().Prepare(t.Context(), subpath.Request{
		PodDir: volume.PodDir(f.root, "a"), VolumeName: "mem", VolumePath: f.Volumes("a")["mem"].Path,
		SubPath: "x/y", Container: "main",
	})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(part, "f"), nil, 0o644))
	require.FileExists(t, filepath.Join(f.Volumes("a")["mem"].Path, "x/y/f"))
	f.restart()
	require.NoError(t, f.Unmount(t.Context(), "a"))
	f.requireUnmounted("a")
}

func TestManyPodsComeAndGo(t *testing.T) {
	f := newFixture(t)
	f.create(configMap("conf", "1"), secret("sec", "1"))
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			for round := range 5 {
				uid := types.UID(fmt.Sprintf("%d-%d", i, round))
				p := pod(uid, emptyDir("disk"), memory("mem"), configMapVolume("conf", "conf"), secretVolume("sec", "sec"), tokenVolume("tok"))
				if err := f.Mount(t.Context(), p); err != nil {
					t.Errorf("mount: %v", err)
				}
				f.PodUpdated(p)
				if n := len(f.Volumes(uid)); n != 5 {
					t.Errorf("%d volumes", n)
				}
				if err := f.Unmount(t.Context(), uid); err != nil {
					t.Errorf("unmount: %v", err)
				}
				if err := f.RemovePodDir(uid); err != nil {
					t.Errorf("remove: %v", err)
				}
			}
		})
	}
	wg.Wait()
	f.waitObjectsReleased()
	require.Zero(t, f.tokens.Len())
	entries, err := os.ReadDir(volume.PodsDir(f.root))
	require.NoError(t, err)
	require.Empty(t, entries)
}
