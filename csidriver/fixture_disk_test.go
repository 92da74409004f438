package csidriver_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const mib = 1 << 20

// disk is one volume and the paths that a kubelet would use for it.
type disk struct {
	w          *fixture
	id         string
	capability *csi.VolumeCapability
	context    map[string]string
	staging    string
	target     string
}

func filesystem(fsType string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType}},
	}
}

func rawBlock() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
	}
}

// create makes a volume of so many bytes, from a source if one is given.
func (w *fixture) create(
	name string, size int64, capability *csi.VolumeCapability, source ...*csi.VolumeContentSource,
) *disk {
	w.t.Helper()
	req := &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: size},
		VolumeCapabilities: []*csi.VolumeCapability{capability},
	}
	if len(source) > 0 {
		req.VolumeContentSource = source[0]
	}
	resp, err := w.CreateVolume(w.t.Context(), req)
	require.NoError(w.t, err)
	require.GreaterOrEqual(w.t, resp.GetVolume().GetCapacityBytes(), size)
	staging := filepath.Join(w.dir, "staging-"+name)
	require.NoError(w.t, os.MkdirAll(staging, 0o700))
	return &disk{
		w: w, id: resp.GetVolume().GetVolumeId(), capability: capability,
		staging: staging, target: filepath.Join(w.dir, "target-"+name),
	}
}

func (d *disk) attach(readonly bool) error {
	resp, err := d.w.ControllerPublishVolume(d.w.t.Context(), &csi.ControllerPublishVolumeRequest{
		VolumeId: d.id, NodeId: node, VolumeCapability: d.capability, Readonly: readonly})
	d.context = resp.GetPublishContext()
	return err
}

func (d *disk) stage() error {
	_, err := d.w.NodeStageVolume(d.w.t.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: d.id, StagingTargetPath: d.staging, VolumeCapability: d.capability, PublishContext: d.context})
	return err
}

func (d *disk) publish(target string, readonly bool) error {
	_, err := d.w.NodePublishVolume(d.w.t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: d.id, StagingTargetPath: d.staging, TargetPath: target, VolumeCapability: d.capability,
		PublishContext: d.context, Readonly: readonly})
	return err
}

func (d *disk) unpublish() error {
	_, err := d.w.NodeUnpublishVolume(d.w.t.Context(),
		&csi.NodeUnpublishVolumeRequest{VolumeId: d.id, TargetPath: d.target})
	return err
}

func (d *disk) unstage() error {
	_, err := d.w.NodeUnstageVolume(d.w.t.Context(),
		&csi.NodeUnstageVolumeRequest{VolumeId: d.id, StagingTargetPath: d.staging})
	return err
}

func (d *disk) detach() error {
	_, err := d.w.ControllerUnpublishVolume(d.w.t.Context(),
		&csi.ControllerUnpublishVolumeRequest{VolumeId: d.id, NodeId: node})
	return err
}

func (d *disk) remove() error {
	_, err := d.w.DeleteVolume(d.w.t.Context(), &csi.DeleteVolumeRequest{VolumeId: d.id})
	return err
}

// mount brings the disk to the target, down takes it away again.
func (d *disk) mount() {
	d.w.t.Helper()
	require.NoError(d.w.t, d.attach(false))
	require.NoError(d.w.t, d.stage())
	require.NoError(d.w.t, d.publish(d.target, false))
}

func (d *disk) unmount() {
	d.w.t.Helper()
	require.NoError(d.w.t, d.unpublish())
	require.NoError(d.w.t, d.unstage())
	require.NoError(d.w.t, d.detach())
}

func (d *disk) write(name, text string) {
	d.w.t.Helper()
	require.NoError(d.w.t, os.WriteFile(filepath.Join(d.target, name), []byte(text), 0o600))
}

func (d *disk) read(name string) string {
	d.w.t.Helper()
	data, err := os.ReadFile(filepath.Join(d.target, name))
	require.NoError(d.w.t, err)
	return string(data)
}

// total is the size in bytes that the filesystem at the target says it has.
func (d *disk) total() int64 {
	d.w.t.Helper()
	total, err := d.measure()
	require.NoError(d.w.t, err)
	return total
}

func (d *disk) measure() (total int64, err error) {
	resp, err := d.w.NodeGetVolumeStats(d.w.t.Context(),
		&csi.NodeGetVolumeStatsRequest{VolumeId: d.id, VolumePath: d.target})
	if err != nil {
		return 0, err
	}
	return resp.GetUsage()[0].GetTotal(), nil
}

// image is the path of the file that has the volume's data.
func (d *disk) image() string { return filepath.Join(d.w.config.Root, "volumes", d.id, "disk.img") }

func requireCode(t *testing.T, code codes.Code, err error) {
	t.Helper()
	require.Equal(t, code, status.Code(err), "error: %v", err)
}

func requireProgram(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skip("needs ", name)
	}
}

var fsTypes = map[string]int64{"ext4": 32 * mib, "xfs": 300 * mib}

func forEachFilesystem(t *testing.T, test func(t *testing.T, fsType string, size int64)) {
	for fsType, size := range fsTypes {
		t.Run(fsType, func(t *testing.T) {
			requireProgram(t, "mkfs."+fsType)
			test(t, fsType, size)
		})
	}
}
