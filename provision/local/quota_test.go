package local_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestSizeIsEnforcedByProjectQuota(t *testing.T) {
	root := quotaFilesystem(t)
	p, events := newProvisioner(t, root)
	pv, err := p.Provision(options("pvc-1"))
	require.NoError(t, err)
	other, err := p.Provision(options("pvc-2"))
	require.NoError(t, err)
	_, err = p.Provision(options("pvc-1"))
	require.NoError(t, err)
	require.Empty(t, events.Events)

	sub := filepath.Join(pv.Spec.Local.Path, "sub")
	require.NoError(t, os.Mkdir(sub, 0o700))
	megabyte := []byte(strings.Repeat("x", 1<<20))
	write := func(dir string, count int) error {
		f, err := os.Create(filepath.Join(dir, "file"))
		require.NoError(t, err)
		defer f.Close()
		return likeAContainer(t, func() error {
			for range count {
				if _, err := f.Write(megabyte); err != nil {
					return err
				}
			}
			return f.Sync()
		})
	}
	require.ErrorIs(t, write(sub, 9), syscall.EDQUOT)
	require.NoError(t, write(other.Spec.Local.Path, 7), "a volume's limit is its own")
	require.NoError(t, p.Delete(pv))
	again, err := p.Provision(options("pvc-1"))
	require.NoError(t, err)
	require.NoError(t, write(again.Spec.Local.Path, 7))
}

// TestAnInterruptedStepKeepsNoProject has a step fail after which a crash could come, and does the rest itself. An ID whose limit is
// left would not be chosen again.
func TestAnInterruptedStepKeepsNoProject(t *testing.T) {
	root := quotaFilesystem(t)
	p, _ := newProvisioner(t, root)
	pv, err := p.Provision(options("pvc-1"))
	require.NoError(t, err)
	project := projectOf(t, pv.Spec.Local.Path)
	require.NotEqual(t, "0", project)

	command(t, "chattr", "+i", root) // the directory of the volume cannot be removed
	require.Error(t, p.Delete(pv))
	command(t, "chattr", "-i", root)
	require.NoError(t, os.Remove(pv.Spec.Local.Path))

	require.NoError(t, os.Mkdir(pv.Spec.Local.Path, 0o700))
	command(t, "chattr", "+i", pv.Spec.Local.Path) // the directory cannot get a project
	_, err = p.Provision(options("pvc-1"))
	require.Error(t, err)
	command(t, "chattr", "-i", pv.Spec.Local.Path)

	_, err = p.Provision(options("pvc-1"))
	require.NoError(t, err)
	require.Equal(t, project, projectOf(t, pv.Spec.Local.Path))
}

// likeAContainer calls f without the capability SYS_RESOURCE, with which no quota is enforced.
func likeAContainer(t *testing.T, f func() error) error {
	t.Helper()
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var sets [2]unix.CapUserData
		err := unix.Capget(&header, &sets[0])
		if err == nil {
			sets[0].Effective &^= 1 << unix.CAP_SYS_RESOURCE
			err = unix.Capset(&header, &sets[0])
		}
		if err == nil {
			err = f()
		}
		result <- err
	}()
	return <-result
}

// projectOf returns the project ID of a directory.
func projectOf(t *testing.T, dir string) string {
	t.Helper()
	return strings.Fields(command(t, "lsattr", "-p", "-d", dir))[0]
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// quotaFilesystem mounts an ext4 of its own that has project quotas.
func quotaFilesystem(t *testing.T) string {
	t.Helper()
	image, root := filepath.Join(t.TempDir(), "image"), t.TempDir()
	file, err := os.Create(image)
	require.NoError(t, err)
	require.NoError(t, file.Truncate(64<<20))
	require.NoError(t, file.Close())
	for _, command := range [][]string{
		{"mkfs.ext4", "-q", "-O", "project,quota", "-E", "quotatype=prjquota", image},
		{"mount", "-o", "loop,prjquota", image, root},
	} {
		if out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Skipf("this machine cannot do project quotas: %v: %v: %s", command, err, out)
		}
	}
	t.Cleanup(func() { _ = exec.Command("umount", root).Run() })
	return root
}
