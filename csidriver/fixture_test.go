package csidriver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/berth-dev/berth/csidriver"
)

const node = "node-1"

// fixture is a driver on a real disk, with the clients that a cluster would call it by.
type fixture struct {
	t      *testing.T
	dir    string
	socket string
	config csidriver.Config
	stop   func()

	csi.ControllerClient
	csi.GroupControllerClient
	csi.NodeClient
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it attaches loop devices and mounts them")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skip("needs loop devices: ", err)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	sockets, err := os.MkdirTemp("", "csi") // short, because of the limit on sockets' paths
	require.NoError(t, err)
	w := &fixture{t: t, dir: dir, socket: filepath.Join(sockets, "csi.sock")}
	w.config = csidriver.Config{
		Endpoint: "unix://" + w.socket, NodeID: node, Root: filepath.Join(dir, "root"), MaxVolumes: 16,
	}
	t.Cleanup(func() {
		w.cleanup()
		_ = os.RemoveAll(sockets)
	})
	return w
}

// start starts the driver; called again, it starts it anew.
func (w *fixture) start() {
	w.t.Helper()
	if w.stop != nil {
		w.stop()
	}
	driver, err := csidriver.New(csidriver.Deps{}, w.config)
	require.NoError(w.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- driver.Start(ctx) }()
	w.connect(func() {
		cancel()
		require.NoError(w.t, <-ended)
	})
}

// startProcess starts the driver as a process of its own; stop kills it.
func (w *fixture) startProcess() {
	w.t.Helper()
	if w.stop != nil {
		w.stop()
	}
	config, err := json.Marshal(w.config)
	require.NoError(w.t, err)
	process := exec.Command(os.Args[0])
	process.Env = append(os.Environ(), envDriver+"="+string(config))
	process.Stderr = os.Stderr
	// What the driver runs (mkfs) is killed with it.
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(w.t, process.Start())
	w.connect(func() {
		require.NoError(w.t, syscall.Kill(-process.Process.Pid, syscall.SIGKILL))
		require.ErrorContains(w.t, process.Wait(), "killed")
	})
}

// connect makes the clients; end ends the driver.
func (w *fixture) connect(end func()) {
	w.t.Helper()
	conn, err := grpc.NewClient("unix://"+w.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(w.t, err)
	w.ControllerClient, w.NodeClient = csi.NewControllerClient(conn), csi.NewNodeClient(conn)
	w.GroupControllerClient = csi.NewGroupControllerClient(conn)
	w.stop = func() {
		w.stop = nil
		end()
		require.NoError(w.t, conn.Close())
	}
	w.t.Cleanup(func() {
		if w.stop != nil {
			w.stop()
		}
	})
	_, err = csi.NewIdentityClient(conn).Probe(w.t.Context(), &csi.ProbeRequest{}, grpc.WaitForReady(true))
	require.NoError(w.t, err)
}

// cleanup takes down what the test left mounted or attached. A test that is fine has left nothing.
func (w *fixture) cleanup() {
	left := w.loops() // before unmounting: the path of an image is known only as long as its filesystem is mounted
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(w.dir))
	require.NoError(w.t, err)
	for i := len(infos) - 1; i >= 0; i-- {
		_ = unix.Unmount(infos[i].Mountpoint, unix.MNT_DETACH)
	}
	for name, backing := range left {
		file, err := os.Open(name)
		require.NoError(w.t, err)
		_ = unix.IoctlSetInt(int(file.Fd()), unix.LOOP_CLR_FD, 0)
		file.Close()
		w.t.Logf("left attached: %s to %s", name, backing)
	}
}

// loops returns the loop devices whose images are in the test's directory, without those that are detached as soon
// as other processes' mount namespaces, which may have copied a mount at any time, release it.
func (w *fixture) loops() map[string]string {
	found := map[string]string{}
	names, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	require.NoError(w.t, err)
	for _, name := range names {
		backing, err := os.ReadFile(name)
		detaching, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "autoclear"))
		if err == nil && strings.TrimSpace(string(detaching)) == "0" && strings.HasPrefix(string(backing), w.dir) {
			found["/dev/"+strings.Split(name, "/")[3]] = strings.TrimSpace(string(backing))
		}
	}
	return found
}

// mountRoot mounts a filesystem of that size as the root of the driver.
func (w *fixture) mountRoot(fsType string, size int64) {
	w.t.Helper()
	require.NoError(w.t, os.Mkdir(w.config.Root, 0o700))
	if fsType == "tmpfs" {
		require.NoError(w.t, unix.Mount("tmpfs", w.config.Root, "tmpfs", 0, fmt.Sprintf("size=%d", size)))
		return
	}
	image := filepath.Join(w.dir, "root.img")
	require.NoError(w.t, os.WriteFile(image, nil, 0o600))
	require.NoError(w.t, os.Truncate(image, size))
	output, err := exec.Command("mkfs."+fsType, "-q", image).CombinedOutput()
	require.NoError(w.t, err, "%s", output)
	output, err = exec.Command("mount", "-o", "loop", image, w.config.Root).CombinedOutput()
	require.NoError(w.t, err, "%s", output)
}

// free is how many bytes are free on the filesystem of the driver's root.
func (w *fixture) free() int64 {
	var stat unix.Statfs_t
	require.NoError(w.t, unix.Statfs(w.config.Root, &stat))
	return int64(stat.Bfree) * stat.Bsize
}
