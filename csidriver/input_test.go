package csidriver_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/berth-dev/berth/csidriver"
)

func TestHostileInput(t *testing.T) {
	w := newFixture(t)
	w.start()
	mine := filepath.Join(w.dir, "mine")
	require.NoError(t, os.WriteFile(mine, []byte("mine"), 0o600))
	for _, name := range []string{
		"../../mine", "/etc/passwd", ".", "..", "a\x00b", strings.Repeat("x", 128), "vol-/../x", "😀", " ",
	} {
		resp, err := w.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: name, VolumeCapabilities: []*csi.VolumeCapability{rawBlock()}})
		require.NoError(t, err)
		require.Regexp(t, "^vol-[0-9a-f]{40}$", resp.GetVolume().GetVolumeId())
		_, err = w.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: resp.GetVolume().GetVolumeId()})
		require.NoError(t, err)
	}
	for _, id := range []string{"../../mine", "vol-../x", "..", "/", "vol-" + strings.Repeat("A", 40), "snap-x"} {
		_, err := w.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
		require.NoError(t, err)
		_, err = w.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: id})
		require.NoError(t, err)
		d := &disk{w: w, id: id, capability: rawBlock(), staging: w.dir, target: filepath.Join(w.dir, "target")}
		requireCode(t, codes.NotFound, d.attach(false))
		requireCode(t, codes.NotFound, d.stage())
		requireCode(t, codes.NotFound, d.publish(d.target, false))
		_, err = w.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: "x", VolumeCapabilities: []*csi.VolumeCapability{rawBlock()}, VolumeContentSource: volumeSource(id)})
		requireCode(t, codes.NotFound, err)
	}
	data, err := os.ReadFile(mine)
	require.NoError(t, err)
	require.Equal(t, "mine", string(data))
}

func TestOnlyItsOwnMountsAreTouched(t *testing.T) {
	w := newFixture(t)
	w.start()
	d := w.create("a", 16*mib, filesystem("ext4"))
	d.mount()
	foreign := filepath.Join(w.dir, "foreign")
	require.NoError(t, os.Mkdir(foreign, 0o700))
	require.NoError(t, unix.Mount("tmpfs", foreign, "tmpfs", 0, ""))
	file, full := filepath.Join(w.dir, "file"), filepath.Join(w.dir, "full")
	require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
	require.NoError(t, os.MkdirAll(filepath.Join(full, "x"), 0o700))
	link := filepath.Join(w.dir, "link")
	require.NoError(t, os.Symlink(d.target, link))
	for path, code := range map[string]codes.Code{
		foreign: codes.Internal, "/": codes.Internal, file: codes.Internal, full: codes.Internal,
		link: codes.InvalidArgument, "relative": codes.InvalidArgument,
	} {
		_, err := w.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: d.id, TargetPath: path})
		requireCode(t, code, err)
	}
	for path, code := range map[string]codes.Code{
		foreign: codes.FailedPrecondition, link: codes.InvalidArgument, "relative": codes.InvalidArgument,
	} {
		requireCode(t, code, d.publish(path, false))
	}
	require.DirExists(t, filepath.Join(full, "x"))
	require.NoError(t, unix.Unmount(foreign, 0))
	d.unmount()
}

func TestRefusals(t *testing.T) {
	w := newFixture(t)
	w.start()
	create := func(change func(*csi.CreateVolumeRequest)) error {
		req := &csi.CreateVolumeRequest{Name: "x", VolumeCapabilities: []*csi.VolumeCapability{filesystem("")}}
		change(req)
		_, err := w.CreateVolume(t.Context(), req)
		return err
	}
	for name, test := range map[string]struct {
		change func(*csi.CreateVolumeRequest)
		code   codes.Code
		text   string
	}{
		"many nodes": {func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities[0].AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
		}, codes.InvalidArgument, "access_mode"},
		"other filesystem": {func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities[0] = filesystem("ntfs")
		}, codes.InvalidArgument, "fs_type"},
		"parameter": {func(r *csi.CreateVolumeRequest) {
			r.Parameters = map[string]string{"csi.storage.k8s.io/pv/name": "fine", "iops": "1"}
		}, codes.InvalidArgument, "iops"},
		"mutable": {func(r *csi.CreateVolumeRequest) {
			r.MutableParameters = map[string]string{"colour": "blue"}
		}, codes.InvalidArgument, "mutable_parameters"},
		"overcommit": {func(r *csi.CreateVolumeRequest) {
			r.Parameters = map[string]string{"overcommit": "0.5"}
		}, codes.InvalidArgument, "at least 1"},
		"overcommit of nothing": {func(r *csi.CreateVolumeRequest) {
			r.Parameters = map[string]string{"overcommit": "NaN"}
		}, codes.InvalidArgument, "at least 1"},
		"preallocate": {func(r *csi.CreateVolumeRequest) {
			r.Parameters = map[string]string{"preallocate": "yes"}
		}, codes.InvalidArgument, "preallocate"},
		"preallocate and overcommit": {func(r *csi.CreateVolumeRequest) {
			r.Parameters = map[string]string{"preallocate": "true", "overcommit": "2"}
		}, codes.InvalidArgument, "excludes"},
		"elsewhere": {func(r *csi.CreateVolumeRequest) {
			r.AccessibilityRequirements = &csi.TopologyRequirement{
				Requisite: []*csi.Topology{{Segments: map[string]string{csidriver.TopologyKey: "other"}}}}
		}, codes.ResourceExhausted, node},
		"no range": {func(r *csi.CreateVolumeRequest) {
			r.CapacityRange = &csi.CapacityRange{RequiredBytes: 2, LimitBytes: 1}
		}, codes.InvalidArgument, "capacity_range"},
		"negative": {func(r *csi.CreateVolumeRequest) {
			r.CapacityRange = &csi.CapacityRange{RequiredBytes: -1}
		}, codes.InvalidArgument, "capacity_range"},
		"immense": {func(r *csi.CreateVolumeRequest) {
			r.CapacityRange = &csi.CapacityRange{RequiredBytes: 1<<63 - 1}
		}, codes.InvalidArgument, "capacity_range"},
		"huge": {func(r *csi.CreateVolumeRequest) {
			r.CapacityRange = &csi.CapacityRange{RequiredBytes: 1 << 60}
		}, codes.ResourceExhausted, "not enough disk space"},
		"limit too low": {func(r *csi.CreateVolumeRequest) {
			r.CapacityRange = &csi.CapacityRange{LimitBytes: 4096}
		}, codes.OutOfRange, "limit_bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			err := create(test.change)
			requireCode(t, test.code, err)
			require.ErrorContains(t, err, test.text)
		})
	}
}

// TestTheDeprecatedFileSystemParameter is accepted: provisioners pass it on beside the capability that has its value.
func TestTheDeprecatedFileSystemParameter(t *testing.T) {
	w := newFixture(t)
	w.start()
	_, err := w.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "old", VolumeCapabilities: []*csi.VolumeCapability{filesystem("ext4")}, Parameters: map[string]string{"fsType": "ext4"}})
	require.NoError(t, err)
}

func TestOddSizesAreRounded(t *testing.T) {
	w := newFixture(t)
	w.start()
	for required, want := range map[int64]int64{0: 1 << 30, 1: mib, 10_000_000: 10_002_432} {
		resp, err := w.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: "odd", CapacityRange: &csi.CapacityRange{RequiredBytes: required},
			VolumeCapabilities: []*csi.VolumeCapability{rawBlock()}})
		require.NoError(t, err)
		require.Equal(t, want, resp.GetVolume().GetCapacityBytes())
		_, err = w.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: resp.GetVolume().GetVolumeId()})
		require.NoError(t, err)
	}
}

func TestAMissingProgramIsNamed(t *testing.T) {
	w := newFixture(t)
	w.start()
	t.Setenv("PATH", "")
	_, err := w.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "x", VolumeCapabilities: []*csi.VolumeCapability{filesystem("xfs")}})
	requireCode(t, codes.FailedPrecondition, err)
	require.ErrorContains(t, err, "package xfsprogs")
}

func TestConfigNamesTheField(t *testing.T) {
	good := csidriver.Config{Endpoint: "/s", NodeID: "n", Root: "/r"}
	for field, change := range map[string]func(*csidriver.Config){
		"Endpoint":   func(c *csidriver.Config) { c.Endpoint = "tcp://x" },
		"Root":       func(c *csidriver.Config) { c.Root = "/" },
		"NodeID":     func(c *csidriver.Config) { c.NodeID = "" },
		"Name":       func(c *csidriver.Config) { c.Name = "-" },
		"MaxVolumes": func(c *csidriver.Config) { c.MaxVolumes = -1 },
	} {
		config := good
		change(&config)
		_, err := csidriver.New(csidriver.Deps{}, config)
		require.ErrorContains(t, err, field)
	}
}

// Whoever still has a device's node published from an earlier use must not get at a volume through it.
func TestADeviceWhoseNodeIsPublishedIsNotTaken(t *testing.T) {
	w := newFixture(t)
	w.start()
	control, err := os.Open("/dev/loop-control")
	require.NoError(t, err)
	defer control.Close()
	free, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	require.NoError(t, err)
	stale := filepath.Join(w.dir, "stale")
	require.NoError(t, os.WriteFile(stale, nil, 0o600))
	require.NoError(t, unix.Mount(fmt.Sprint("/dev/loop", free), stale, "", unix.MS_BIND, ""))
	disks := []*disk{w.create("a", 16*mib, rawBlock()), w.create("b", 16*mib, rawBlock())}
	for _, d := range disks {
		d.mount()
		require.NotEqual(t, fmt.Sprint("/dev/loop", free), d.context[csidriver.ContextDevice])
	}
	require.NoError(t, unix.Unmount(stale, 0))
	for _, d := range disks {
		d.unmount()
	}
}
