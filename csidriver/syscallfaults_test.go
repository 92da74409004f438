package csidriver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/berth-dev/berth/internal/faulttest"
)

// passingErrors end by themselves: no file is damaged because of them.
var passingErrors = []string{"ENOSPC", "EDQUOT", "EROFS", "EMFILE", "EBUSY"}

// TestSystemCallsMayFail lets each system call on the driver's files, mounts and devices fail once with each error that it may return, from
// the start of the driver over provisioning, mounting, a snapshot, its restoration and an expansion to the removal of everything. The call of
// CSI that it is a part of fails or succeeds; repeated, it succeeds; all data are there in the end, and nothing is left.
func TestSystemCallsMayFail(t *testing.T) {
	reference := &faulttest.Injector{}
	runWithFault(t, reference)
	require.Greater(t, len(reference.Calls()), 100)
	faulttest.Sweep(t, reference.Calls(), faulttest.Thin(80), runWithFault) // each takes a second
}

// runWithFault does all steps on a new driver, and reports whether one failed.
func runWithFault(t *testing.T, in *faulttest.Injector) (failed bool) {
	w := newFixture(t)
	in.Dirs = []string{w.dir, "/dev/loop"}
	if err := w.startInjected(in); err != nil {
		require.NotEmpty(t, in.Injected(), "the start: %v", err)
		require.NoError(t, w.startInjected(&faulttest.Injector{}), "after %s", in.Injected())
		failed = true
	}
	step := func(name string, do func() error) {
		t.Helper()
		err := do()
		if err == nil {
			return
		}
		require.NotEmpty(t, in.Injected(), "%s: %v", name, err)
		require.False(t, failed, "%s fails, although the fault has ended; %s: %v", name, in.Injected(), err)
		failed = true
		require.NoError(t, do(), "%s, repeated after %s: %v", name, in.Injected(), err)
	}
	origin := w.faultyDisk("origin")
	create := func(d *disk, size int64, source *csi.VolumeContentSource) func() error {
		return func() error {
			resp, err := w.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: filepath.Base(d.target), VolumeContentSource: source,
				CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapabilities: []*csi.VolumeCapability{d.capability}})
			d.id = resp.GetVolume().GetVolumeId()
			return err
		}
	}
	mount := func(d *disk) {
		step("attach", func() error { return d.attach(false) })
		step("stage", d.stage)
		step("publish", func() error { return d.publish(d.target, false) })
	}
	unmount := func(d *disk) {
		step("unpublish", d.unpublish)
		step("unstage", d.unstage)
		step("detach", d.detach)
	}
	step("create", create(origin, 16*mib, nil))
	mount(origin)
	origin.write("file", "kept")
	var snapshot string
	step("snapshot", func() error {
		resp, err := w.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: origin.id})
		snapshot = resp.GetSnapshot().GetSnapshotId()
		return err
	})
	unmount(origin)
	step("expand", func() error {
		_, err := w.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{VolumeId: origin.id,
			CapacityRange: &csi.CapacityRange{RequiredBytes: 24 * mib}, VolumeCapability: origin.capability})
		return err
	})
	restored := w.faultyDisk("restored")
	step("restore", create(restored, 16*mib, snapshotSource(snapshot)))
	for _, d := range []*disk{origin, restored} {
		mount(d)
		require.Equal(t, "kept", d.read("file"), in.Injected())
	}
	var total int64
	step("measure", func() (err error) {
		total, err = origin.measure()
		return err
	})
	require.Greater(t, total, int64(20*mib), "%s: the file system has not grown", in.Injected())
	for _, d := range []*disk{origin, restored} {
		unmount(d)
		step("delete", d.remove)
	}
	step("delete the snapshot", func() error {
		_, err := w.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: snapshot})
		return err
	})
	require.NoError(t, w.startInjected(&faulttest.Injector{}), "the next start, after %s", in.Injected())
	w.requireNothingLeft(in.Injected())
	w.stop()
	return failed
}

// faultyDisk is a disk that is not created yet.
func (w *fixture) faultyDisk(name string) *disk {
	w.t.Helper()
	staging := filepath.Join(w.dir, "staging-"+name)
	require.NoError(w.t, os.MkdirAll(staging, 0o700))
	return &disk{w: w, capability: filesystem("ext4"), staging: staging, target: filepath.Join(w.dir, "target-"+name)}
}

// requireNothingLeft checks that no volume, mount or device is left, and that no file was set aside although nothing was damaged.
func (w *fixture) requireNothingLeft(fault string) {
	w.t.Helper()
	require.Empty(w.t, w.loops(), fault)
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(w.dir))
	require.NoError(w.t, err)
	require.Empty(w.t, infos, fault)
	passing := false
	for _, name := range passingErrors {
		passing = passing || strings.HasPrefix(fault, name)
	}
	require.NoError(w.t, filepath.WalkDir(w.config.Root, func(path string, entry fs.DirEntry, err error) error {
		if !entry.IsDir() && (passing || !strings.Contains(entry.Name(), ".damaged")) {
			w.t.Errorf("after %s there is %s", fault, path)
		}
		return err
	}))
}

// startInjected starts the driver as a process of its own under an injector. It fails if the process ends before it serves, and then with
// what it wrote.
func (w *fixture) startInjected(in *faulttest.Injector) error {
	w.t.Helper()
	if w.stop != nil {
		w.stop()
	}
	config, err := json.Marshal(w.config)
	require.NoError(w.t, err)
	var printed bytes.Buffer
	process := exec.Command(os.Args[0])
	process.Env = append(os.Environ(), envDriver+"="+string(config))
	process.Stderr = &printed
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(w.t, in.Start(process))
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- process.Wait(); cancel() }()
	conn, err := grpc.NewClient("unix://"+w.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(w.t, err)
	w.ControllerClient, w.NodeClient = csi.NewControllerClient(conn), csi.NewNodeClient(conn)
	if _, err = csi.NewIdentityClient(conn).Probe(ctx, &csi.ProbeRequest{}, grpc.WaitForReady(true)); err != nil {
		require.NoError(w.t, conn.Close())
		_ = syscall.Kill(-process.Process.Pid, syscall.SIGKILL) // it may have ended
		<-ended
		require.NotEmpty(w.t, strings.TrimSpace(printed.String()), "a start that fails says why")
		return errors.New(printed.String())
	}
	w.stop = func() {
		w.stop = nil
		require.NoError(w.t, syscall.Kill(-process.Process.Pid, syscall.SIGKILL))
		<-ended
		require.NoError(w.t, conn.Close())
	}
	w.t.Cleanup(func() {
		if w.stop != nil {
			w.stop()
		}
	})
	return nil
}
