package volumemanager_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/volume/mounts"
)

// limitedEmptyDir is a volume on disk that may hold a mebibyte.
func limitedEmptyDir(name string) corev1.Volume {
	return vol(name, corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("1Mi"))}})
}

func TestEmptyDirOverItsSizeLimitIsReported(t *testing.T) {
	f := newFixture(t)
	small, large := pod("small", limitedEmptyDir("v"), emptyDir("free")), pod("large", limitedEmptyDir("v"))
	require.NoError(t, f.Mount(t.Context(), small))
	require.NoError(t, f.Mount(t.Context(), large))
	write := func(uid, name string, bytes int) {
		volumes := f.Volumes(small.UID)
		if uid == "large" {
			volumes = f.Volumes(large.UID)
		}
		require.NoError(t, os.WriteFile(filepath.Join(volumes[name].Path, "file"), make([]byte, bytes), 0o600))
	}
	write("small", "v", 512<<10)
	write("small", "free", 4<<20) // has no limit
	// A file with two names is one file, one with holes takes no space, and mounts below do not count.
	path := f.Volumes(small.UID)["v"].Path
	require.NoError(t, os.Link(filepath.Join(path, "file"), filepath.Join(path, "again")))
	require.NoError(t, os.WriteFile(filepath.Join(path, "sparse"), nil, 0o600))
	require.NoError(t, os.Truncate(filepath.Join(path, "sparse"), 1<<30))
	require.NoError(t, os.Mkdir(filepath.Join(path, "below"), 0o700))
	require.NoError(t, mounts.MountTmpfs(mounts.Syscalls{}, filepath.Join(path, "below")))
	require.NoError(t, os.WriteFile(filepath.Join(path, "below", "file"), make([]byte, 4<<20), 0o600))
	for range 2 {
		f.step(10 * time.Second)
	}
	write("large", "v", 2<<20)
	f.step(10 * time.Second)
	select {
	case updated := <-f.overLimit:
		require.Equal(t, `large: Usage of EmptyDir volume "v" exceeds the limit "1Mi". `, updated)
	case <-time.After(waitTimeout):
		t.Fatal("no call of OnSizeLimitExceeded")
	}
	require.NoError(t, f.Unmount(t.Context(), small.UID))
	require.NoError(t, f.Unmount(t.Context(), large.UID))
	f.step(10 * time.Second)
	f.eventually("no timer without volumes to measure", func() bool { return !f.clock.HasWaiters() })
	for len(f.overLimit) > 0 { // it is called after each measurement until the volume is unmounted
		require.Contains(t, <-f.overLimit, "large: ")
	}
}
