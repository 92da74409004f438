package csi_test

import (
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	kubefake "k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/volume/csi"
)

// FuzzResponses mounts and unmounts a volume of a driver whose every response has arbitrary bytes: the calls return, and leave nothing
// that a later teardown does not remove.
func FuzzResponses(f *testing.F) {
	add := func(message proto.Message) {
		data, err := proto.Marshal(message)
		require.NoError(f, err)
		f.Add(data)
	}
	add(&csipb.NodeGetCapabilitiesResponse{})
	add(&csipb.NodeGetCapabilitiesResponse{Capabilities: []*csipb.NodeServiceCapability{{Type: &csipb.NodeServiceCapability_Rpc{
		Rpc: &csipb.NodeServiceCapability_RPC{Type: csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
	}}, {}}})
	add(&csipb.NodeGetInfoResponse{NodeId: "n", AccessibleTopology: &csipb.Topology{Segments: map[string]string{"a": "b"}}})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1, 2, 3})
	f.Fuzz(func(t *testing.T, response []byte) {
		all := map[string][]byte{}
		for _, call := range []string{
			"NodeGetCapabilities", "NodeGetInfo", "NodeStageVolume", "NodeUnstageVolume", "NodePublishVolume", "NodeUnpublishVolume",
			"NodeGetVolumeStats", "NodeExpandVolume",
		} {
			all[call] = response
		}
		driver, err := csi.Dial(t.Context(), driverName, badDriver(t, all))
		if err != nil {
			return
		}
		drivers := csi.NewDrivers()
		drivers.Add(driver)
		defer drivers.Close()
		if info, err := driver.NodeInfo(t.Context()); err == nil {
			require.NotEmpty(t, info.NodeId)
		}
		fixture := newFixture(t)
		plugin := fixture.startWith(kubefake.NewClientset(fixture.object), drivers)
		request := fixture.request("uid", persistent("pv"))
		_, _ = plugin.SetUp(t.Context(), request)
		if plugin.TearDown(t.Context(), request.Dir) == nil {
			require.NoDirExists(t, request.Dir)
		}
	})
}
