package csidriver_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-dev/berth/csidriver"
)

// A shared volume goes from node to node, is on one at a time, and is staged only where it is published.
func TestSharedVolumeGoesFromNodeToNode(t *testing.T) {
	w := newFixture(t)
	w.config.Shared = true
	w.start()
	there := newFixture(t)
	there.config.Root, there.config.NodeID = w.config.Root, "node-2"
	there.config.Shared, there.config.NodeOnly = true, true
	there.start()
	capability := &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
	made, err := w.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "moves", VolumeCapabilities: []*csi.VolumeCapability{capability},
		CapacityRange: &csi.CapacityRange{RequiredBytes: 16 << 20},
	})
	require.NoError(t, err)
	require.Empty(t, made.Volume.AccessibleTopology, "it is everywhere")
	id := made.Volume.VolumeId
	publish := func(node string) error {
		_, err := w.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{
			VolumeId: id, NodeId: node, VolumeCapability: capability})
		return err
	}
	unpublish := func(node string) {
		t.Helper()
		_, err := w.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: node})
		require.NoError(t, err)
	}
	published := func() []string {
		list, err := w.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
		require.NoError(t, err)
		return list.Entries[0].Status.PublishedNodeIds
	}
	stage := func(on *fixture) (string, error) {
		path := filepath.Join(on.dir, "staging")
		_, err := on.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
			VolumeId: id, StagingTargetPath: path, VolumeCapability: capability})
		return path, err
	}
	unstage := func(on *fixture, path string) {
		t.Helper()
		_, err := on.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: path})
		require.NoError(t, err)
		require.Empty(t, w.loops(), "a node that has unstaged it has it no longer attached")
	}

	_, err = stage(w)
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "it is published nowhere")
	require.NoError(t, publish(node))
	require.NoError(t, publish(node), "again is no change")
	require.Equal(t, codes.FailedPrecondition, status.Code(publish("node-2")), "one node at a time")
	require.Equal(t, []string{node}, published())
	path, err := stage(w)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(path, "file"), []byte("precious"), 0o600))
	_, err = stage(there)
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "it is published elsewhere")
	unstage(w, path)
	_, err = w.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "it is still published")

	unpublish("node-2")
	require.Equal(t, []string{node}, published(), "a node that has it not cannot give it up")
	unpublish(node)
	require.NoError(t, publish("node-2"))
	w.start() // what is published outlives the driver
	require.Equal(t, []string{"node-2"}, published())
	path, err = stage(there)
	require.NoError(t, err)
	data, err := os.ReadFile(filepath.Join(path, "file"))
	require.NoError(t, err)
	require.Equal(t, "precious", string(data))
	unstage(there, path)
	unpublish("")
	_, err = w.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
	require.NoError(t, err)

	_, err = csidriver.New(csidriver.Deps{}, csidriver.Config{
		Endpoint: "/x", NodeID: node, Root: filepath.Join(w.dir, "r"), NodeOnly: true})
	require.ErrorContains(t, err, "NodeOnly")
}

// A mount that was copied into another mount namespace keeps the filesystem alive when the node unmounts it: until that is gone, the
// volume must not be published to another node.
func TestSharedVolumeIsUnstagedWhenNoNamespaceHasItMounted(t *testing.T) {
	w := newFixture(t)
	w.config.Shared = true
	w.start()
	capability := &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
	made, err := w.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "copied", VolumeCapabilities: []*csi.VolumeCapability{capability}, CapacityRange: &csi.CapacityRange{RequiredBytes: 16 << 20},
	})
	require.NoError(t, err)
	id, staging := made.Volume.VolumeId, filepath.Join(w.dir, "staging")
	_, err = w.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: node, VolumeCapability: capability})
	require.NoError(t, err)
	_, err = w.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: staging, VolumeCapability: capability})
	require.NoError(t, err)

	holder := exec.CommandContext(t.Context(), "unshare", "--mount", "--propagation", "private", "cat")
	stdin, err := holder.StdinPipe()
	require.NoError(t, err)
	stdout, err := holder.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, holder.Start())
	_, err = stdin.Write([]byte("x"))
	require.NoError(t, err)
	_, err = stdout.Read(make([]byte, 1)) // it has the copy, and is cat
	require.NoError(t, err)
	unstage := func() error {
		_, err := w.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging})
		return err
	}
	for range 2 { // a repeated call is no success either
		err = unstage()
		require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
		require.ErrorContains(t, err, fmt.Sprintf("%d (cat)", holder.Process.Pid))
	}
	require.NoError(t, stdin.Close())
	require.NoError(t, holder.Wait())
	require.Eventually(t, func() bool { return unstage() == nil }, time.Minute, 10*time.Millisecond, "the kernel unmounts the copy some time after the process")
	require.Empty(t, w.loops())
}
