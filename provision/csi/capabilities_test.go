package csi_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/provision/csi"
	"github.com/berth-dev/berth/provision/health"
	"github.com/berth-dev/berth/provision/snapshot/grouptaker"
	"github.com/berth-dev/berth/provision/snapshot/shared"
	"github.com/berth-dev/berth/provision/snapshot/taker"
)

type rpcType = csiapi.ControllerServiceCapability_RPC_Type

// without returns a provisioner with a driver that has all capabilities of the specification but one. Calls that need it
// return Unimplemented.
func without(t *testing.T, lacks rpcType, objects ...runtime.Object) (*csi.Provisioner, *fakeDriver) {
	t.Helper()
	f := newFakeDriver()
	f.rpcs = nil
	for number := range csiapi.ControllerServiceCapability_RPC_Type_name {
		if rpc := rpcType(number); rpc != lacks && number != 0 {
			f.rpcs = append(f.rpcs, rpc)
		}
	}
	socket := socketPath(t)
	f.serve(t, socket)
	return started(t, csi.Deps{
		Client: cluster(objects...), Dynamic: dynamicfake.NewSimpleDynamicClient(runtime.NewScheme(), snapshotObjects("h", driverName, true, func(_, _ map[string]any) {})...),
	}, csi.Config{Socket: socket}), f
}

// TestEveryControllerCapability does what a capability is for with a driver that has all others. It fails if the specification gets
// a capability that it does not know.
func TestEveryControllerCapability(t *testing.T) {
	refused := func(text string, change ...func(*provision.VolumeOptions)) func(*testing.T, rpcType) {
		return func(t *testing.T, lacks rpcType) {
			p, f := without(t, lacks)
			_, state, err := p.ProvisionContext(t.Context(), options(change...))
			require.ErrorContains(t, err, text)
			require.Equal(t, provision.ProvisioningNoChange, state)
			require.Empty(t, f.created)
		}
	}
	elsewhere := func(*testing.T, rpcType) {} // package attacher has it, and its tests
	unused := func(*testing.T, rpcType) {}    // nothing calls it
	for lacks, check := range map[rpcType]func(*testing.T, rpcType){
		csiapi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME:         refused("does not support creating volumes"),
		csiapi.ControllerServiceCapability_RPC_CLONE_VOLUME:                 refused("does not support cloning volumes", fromClaim),
		csiapi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT:       withoutSnapshots(refused("does not support snapshots", fromSnapshot)),
		csiapi.ControllerServiceCapability_RPC_MODIFY_VOLUME:                refused("volumeAttributesClassName", withAttributes),
		csiapi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME:     deletedWithoutAttachments,
		csiapi.ControllerServiceCapability_RPC_GET_CAPACITY:                 withoutCapacity,
		csiapi.ControllerServiceCapability_RPC_EXPAND_VOLUME:                withoutExpansion,
		csiapi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER:     oneWriter,
		csiapi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH:            elsewhere, // TestVolumeHealth
		csiapi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH:           elsewhere,
		csiapi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS:               elsewhere, // TestSnapshotThatCannotBeRead
		csiapi.ControllerServiceCapability_RPC_GET_SNAPSHOT:                 elsewhere,
		csiapi.ControllerServiceCapability_RPC_PUBLISH_READONLY:             elsewhere,
		csiapi.ControllerServiceCapability_RPC_LIST_VOLUMES:                 elsewhere,
		csiapi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES: elsewhere,
		csiapi.ControllerServiceCapability_RPC_GET_VOLUME:                   unused,
		csiapi.ControllerServiceCapability_RPC_UNKNOWN:                      unused,
	} {
		t.Run(lacks.String(), func(t *testing.T) { check(t, lacks) })
		delete(unchecked, int32(lacks))
	}
	require.Empty(t, unchecked, "capabilities that are new")
}

// unchecked has the capabilities of the specification that TestEveryControllerCapability has not come to.
var unchecked = func() map[int32]string {
	all := map[int32]string{}
	for number, name := range csiapi.ControllerServiceCapability_RPC_Type_name {
		all[number] = name
	}
	return all
}()

func fromClaim(o *provision.VolumeOptions) {
	o.PVC.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "claim"}
}

func withAttributes(o *provision.VolumeOptions) {
	o.PVC.Spec.VolumeAttributesClassName = ptr.To("fast")
}

func withoutSnapshots(restore func(*testing.T, rpcType)) func(*testing.T, rpcType) {
	return func(t *testing.T, lacks rpcType) {
		restore(t, lacks)
		p, _ := without(t, lacks)
		_, err := p.CreateSnapshot(t.Context(), taker.CreateRequest{Name: "s", Volume: "v"})
		require.ErrorIs(t, err, shared.ErrUnsupported)
		require.ErrorIs(t, p.DeleteSnapshot(t.Context(), "s", nil), shared.ErrUnsupported)
		_, err = p.CreateGroup(t.Context(), grouptaker.CreateRequest{Name: "g", Volumes: []string{"v"}})
		require.ErrorIs(t, err, shared.ErrUnsupported, "it has no group controller service")
	}
}

// deletedWithoutAttachments deletes a volume that is attached: a driver that publishes nothing cannot know.
func deletedWithoutAttachments(t *testing.T, lacks rpcType) {
	p, f := without(t, lacks)
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "handle"}
	require.NoError(t, p.DeleteContext(t.Context(), pv))
	require.Len(t, f.deleted, 1)
}

func withoutCapacity(t *testing.T, lacks rpcType) {
	p, f := without(t, lacks)
	_, _, err := p.Capacity(t.Context(), nil, nil)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.Empty(t, f.capacityRequests)
}

func withoutExpansion(t *testing.T, lacks rpcType) {
	p, _ := without(t, lacks)
	capabilities, err := p.Capabilities(t.Context())
	require.NoError(t, err)
	require.False(t, capabilities.Controller)
	require.False(t, capabilities.Node, "no node service is on the socket")
}

func oneWriter(t *testing.T, lacks rpcType) {
	p, f := without(t, lacks)
	for _, mode := range []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteOncePod} {
		_, _, err := p.ProvisionContext(t.Context(), options(func(o *provision.VolumeOptions) {
			o.PVName, o.PVC.Spec.AccessModes = "pvc-"+string(mode), []corev1.PersistentVolumeAccessMode{mode}
		}))
		require.NoError(t, err)
		require.Equal(t, csiapi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, f.last().GetVolumeCapabilities()[0].GetAccessMode().GetMode())
	}
}

// TestSnapshotThatCannotBeRead counts as ready with a driver that can read none.
func TestSnapshotThatCannotBeRead(t *testing.T) {
	f := newFakeDriver()
	p := withDriver(t, f, csi.Config{})
	found, err := p.GetSnapshot(t.Context(), "id", nil)
	require.NoError(t, err)
	require.Equal(t, taker.Snapshot{ID: "id", Ready: true}, found)
}

// healthServer is a driver that knows that one volume is degraded, and another gone.
type healthServer struct{ *fakeDriver }

func (healthServer) ControllerListVolumeHealth(_ context.Context, r *csiapi.ControllerListVolumeHealthRequest) (*csiapi.ControllerListVolumeHealthResponse, error) {
	pages := []string{"", "2"}
	at := slices.Index(pages, r.GetStartingToken())
	resp := &csiapi.ControllerListVolumeHealthResponse{Entries: []*csiapi.VolumeHealth{degraded([]string{"a", "b"}[at])}}
	if at == 0 {
		resp.NextToken = "2"
	}
	return resp, nil
}

func (healthServer) ControllerGetVolumeHealth(_ context.Context, r *csiapi.ControllerGetVolumeHealthRequest) (*csiapi.ControllerGetVolumeHealthResponse, error) {
	if r.GetVolumeId() == "gone" {
		return nil, status.Error(codes.NotFound, "gone")
	}
	return &csiapi.ControllerGetVolumeHealthResponse{VolumeHealth: degraded(r.GetVolumeId())}, nil
}

func degraded(id string) *csiapi.VolumeHealth {
	return &csiapi.VolumeHealth{VolumeId: id, HealthStatuses: []*csiapi.VolumeHealth_VolumeHealthEntry{
		{Status: csiapi.VolumeHealthErrorType_DEGRADED, Reason: "PathLost", Message: "slow"}}}
}

// TestVolumeHealth reads it in the way that the driver supports.
func TestVolumeHealth(t *testing.T) {
	problem := []health.Problem{{Status: "DEGRADED", Reason: "PathLost", Message: "slow"}}
	for name, test := range map[string]struct {
		rpcs []rpcType
		want map[string][]health.Problem
	}{
		"list": {[]rpcType{csiapi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH, csiapi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH},
			map[string][]health.Problem{"a": problem, "b": problem}},
		"get": {[]rpcType{csiapi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH}, map[string][]health.Problem{"x": problem, "gone": {{
			Status: "INACCESSIBLE", Reason: "VolumeNotFound", Message: "the driver does not know the volume: it was deleted outside of Kubernetes"}}}},
		"none": {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeDriver()
			f.rpcs = test.rpcs
			socket := socketPath(t)
			f.serveAs(t, socket, healthServer{f}, nil)
			p := started(t, csi.Deps{Client: cluster()}, csi.Config{Socket: socket})
			found, err := p.VolumeHealth(t.Context(), func() []string { return []string{"x", "gone"} })
			if test.want == nil {
				require.ErrorIs(t, err, errors.ErrUnsupported)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.want, found)
		})
	}
}
