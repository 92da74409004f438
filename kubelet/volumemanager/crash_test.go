package volumemanager_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/mounts"
	"github.com/berth-dev/berth/volume/subpath"
	"github.com/berth-dev/berth/volume/testsuite"
)

// crashRoot names the environment variable that makes TestCrashingProcess the process that is killed.
const crashRoot = "BERTH_TEST_CRASH_ROOT"

// crashDevice names the one with the block device of its Pods.
const crashDevice = "BERTH_TEST_CRASH_DEVICE"

// crashPod is a Pod with a volume of each kind, one of them a block device.
func crashPod(uid types.UID) *corev1.Pod {
	p := pod(uid, emptyDir("disk"), memory("mem"), configMapVolume("conf", "conf"), secretVolume("sec", "sec"),
		tokenVolume("tok"), claimVolume("data", "c"))
	p.Spec.Volumes = append(p.Spec.Volumes, claimVolume("raw", "d"))
	p.Spec.Containers[0].VolumeDevices = []corev1.VolumeDevice{{Name: "raw", DevicePath: "/dev/raw"}}
	return p
}

// TestCrashingProcess mounts and unmounts until it is killed. By itself it does nothing.
func TestCrashingProcess(t *testing.T) {
	root := os.Getenv(crashRoot)
	if root == "" {
		t.Skip("run by TestKilledAtAnyMomentLeavesNothingThatIsNotCleanedUp")
	}
	f := newFixtureAt(t, root)
	claim, pv, _ := f.newLocalClaim("c")
	raw, disk := f.newLocalBlockClaim("d", os.Getenv(crashDevice))
	f.create(configMap("conf", "1"), secret("sec", "1"), claim, pv, raw, disk, newNode())
	fmt.Println("started")
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for round := 0; ; round++ {
				uid := types.UID(fmt.Sprintf("%d-%d", i, round%3))
				if err := f.Mount(t.Context(), crashPod(uid)); err != nil {
					fmt.Println("mount failed:", err)
					return
				}
				_, err := f.SubPaths().Prepare(t.Context(), subpath.Request{
					PodDir: volume.PodDir(root, uid), VolumeName: "data", VolumePath: f.Volumes(uid)["data"].Path,
					SubPath: "sub", Container: "main",
				})
				if err == nil {
					err = f.Unmount(t.Context(), uid)
				}
				if err == nil {
					err = f.RemovePodDir(uid)
				}
				if err != nil {
					fmt.Println("failed:", err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestKilledAtAnyMomentLeavesNothingThatIsNotCleanedUp(t *testing.T) {
	f := newFixture(t)
	claim, pv, dir := f.newLocalClaim("c")
	device := testsuite.BlockDevice(t)
	raw, disk := f.newLocalBlockClaim("d", device)
	f.create(configMap("conf", "1"), secret("sec", "1"), claim, pv, raw, disk, newNode())
	precious := filepath.Join(dir, "precious")
	require.NoError(t, os.WriteFile(precious, []byte("data"), 0o600))
	found, pinned := 0, 0
	// On a slow machine it takes longer until something is left.
	for round := 0; round < 15 || found == 0 || pinned == 0; round++ {
		kill(t, f.root, device, time.Duration(1+round/15)*80*time.Millisecond)
		leftovers, err := mounts.ListBelow(volume.PodsDir(f.root))
		require.NoError(t, err)
		found += len(leftovers)
		pinned += len(f.pinnedDevices())
		f.restart()
		// One Pod keeps running and finds its volumes, the others are orphans.
		survivor := crashPod("0-0")
		require.NoError(t, f.Mount(t.Context(), survivor), "round %d", round)
		require.Equal(t, "1", f.readFile("0-0", "sec", "k"))
		require.Equal(t, "data", f.readFile("0-0", "data", "precious"))
		require.NoError(t, f.CleanupOrphans(t.Context(), func(uid types.UID) bool { return uid == "0-0" }))
		entries, err := os.ReadDir(volume.PodsDir(f.root))
		require.NoError(t, err)
		require.Len(t, entries, 1)
		require.Len(t, f.pinnedDevices(), 1)
		require.NoError(t, f.Unmount(t.Context(), "0-0"))
		require.NoError(t, f.RemovePodDir("0-0"))
		left, err := mounts.ListBelow(volume.PodsDir(f.root))
		require.NoError(t, err)
		require.Empty(t, left)
		require.Empty(t, f.pinnedDevices())
		require.Empty(t, filesBelow(t, filepath.Join(f.root, "plugins")))
		require.FileExists(t, precious)
	}
}

// filesBelow lists all below a directory that is no directory.
func filesBelow(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			files = append(files, path)
		}
		return err
	}))
	return files
}

// kill runs TestCrashingProcess on the root directory and kills it at some moment until then.
func kill(t *testing.T, root, device string, until time.Duration) {
	t.Helper()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestCrashingProcess$", "-test.timeout", "60s")
	child.Env = append(os.Environ(), crashRoot+"="+root, crashDevice+"="+device)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	line := make([]byte, 64)
	n, err := out.Read(line)
	require.NoError(t, err)
	require.Equal(t, "started\n", string(line[:n]))
	moment := time.NewTimer(rand.N(until))
	<-moment.C
	require.NoError(t, child.Process.Kill())
	rest := make([]byte, 4096)
	n, _ = out.Read(rest)
	require.Empty(t, string(rest[:n]), "the process must have worked until it was killed")
	_ = child.Wait() // it was killed
}
