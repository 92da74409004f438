package testsuite

import (
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// ProjectQuotaDisk mounts an ext4 file system with project quotas until the end of the test, and returns its root. It skips the
// test where that is impossible.
func ProjectQuotaDisk(t testing.TB) string {
	t.Helper()
	image, dir := filepath.Join(t.TempDir(), "disk"), t.TempDir()
	for _, args := range [][]string{
		{"truncate", "-s", "64M", image}, {"mkfs.ext4", "-q", "-I", "256", "-O", "quota,project", "-E", "quotatype=prjquota", image},
		{"mount", "-o", "loop", image, dir},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("no file system with project quotas here: %v: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}
