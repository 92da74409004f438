package netns

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestOnlyTheFunctionRunsInTheNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	process := exec.Command("/bin/sleep", "1000")
	process.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	require.NoError(t, process.Start())
	defer func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	}()
	file := "/proc/" + strconv.Itoa(process.Process.Pid) + "/ns/net"
	there, err := os.Readlink(file)
	require.NoError(t, err)
	here, err := os.Readlink("/proc/self/ns/net")
	require.NoError(t, err)
	var all sync.WaitGroup
	for range 50 { // some start on the main thread
		all.Go(func() {
			var got string
			err := Do(file, func() (err error) {
				got, err = os.Readlink("/proc/thread-self/ns/net")
				return err
			})
			if err != nil || got != there {
				t.Errorf("%s: %v", got, err)
			}
		})
	}
	all.Wait()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, path := range []string{"/proc/self/ns/net", "/proc/thread-self/ns/net"} {
		got, err := os.Readlink(path)
		require.NoError(t, err)
		require.Equal(t, here, got)
	}
	require.Error(t, Do("/proc/self/ns/none", func() error { return nil }))
	require.ErrorIs(t, Do("/proc/self/ns/mnt", func() error { return nil }), unix.EINVAL)
}
