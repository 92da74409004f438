package csi_test

import (
	"context"
	"testing"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/provision/csi"
	"github.com/berth-dev/berth/provision/resize"
)

// expandServer is a driver that makes volumes larger, or whose node service does.
type expandServer struct {
	csiapi.UnimplementedNodeServer
	*fakeDriver
	node     []csiapi.NodeServiceCapability_RPC_Type
	requests []*csiapi.ControllerExpandVolumeRequest
	err      error
}

func (e *expandServer) ControllerExpandVolume(
	_ context.Context, req *csiapi.ControllerExpandVolumeRequest,
) (*csiapi.ControllerExpandVolumeResponse, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.requests = append(e.requests, req)
	return &csiapi.ControllerExpandVolumeResponse{
		CapacityBytes:         req.GetCapacityRange().GetRequiredBytes() + 1,
		NodeExpansionRequired: req.GetVolumeCapability().GetBlock() == nil,
	}, e.err
}

func (e *expandServer) NodeGetCapabilities(
	context.Context, *csiapi.NodeGetCapabilitiesRequest,
) (*csiapi.NodeGetCapabilitiesResponse, error) {
	resp := &csiapi.NodeGetCapabilitiesResponse{}
	for _, rpc := range e.node {
		resp.Capabilities = append(resp.Capabilities, &csiapi.NodeServiceCapability{
			Type: &csiapi.NodeServiceCapability_Rpc{Rpc: &csiapi.NodeServiceCapability_RPC{Type: rpc}}})
	}
	return resp, nil
}

func (e *expandServer) start(t *testing.T) *csi.Provisioner {
	t.Helper()
	config := csi.Config{Socket: socketPath(t)}
	e.fakeDriver.serveAs(t, config.Socket, e, e)
	return started(t, csi.Deps{Client: cluster(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "vault", Name: "grow"}, Data: map[string][]byte{"key": []byte("1234")},
	})}, config)
}

func grownVolume(change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1"}, Spec: corev1.PersistentVolumeSpec{
		AccessModes:  []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod},
		MountOptions: []string{"noatime"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			Driver: driverName, VolumeHandle: "h", FSType: "xfs",
			ControllerExpandSecretRef: &corev1.SecretReference{Namespace: "vault", Name: "grow"}}},
	}}
	for _, c := range change {
		c(pv)
	}
	return pv
}

func TestExpandVolume(t *testing.T) {
	e := &expandServer{fakeDriver: newFakeDriver()}
	e.rpcs = append(e.rpcs, csiapi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csiapi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	p := e.start(t)
	able, err := p.Capabilities(t.Context())
	require.NoError(t, err)
	require.Equal(t, resize.Capabilities{Controller: true}, able)

	grown, err := p.ExpandVolume(t.Context(), grownVolume(), 99)
	require.NoError(t, err)
	require.Equal(t, resize.ExpandResult{Capacity: 100, NodeExpansionRequired: true}, grown)
	request := e.requests[0]
	require.Equal(t, "h", request.GetVolumeId())
	require.EqualValues(t, 99, request.GetCapacityRange().GetRequiredBytes())
	require.Equal(t, map[string]string{"key": "1234"}, request.GetSecrets())
	require.Equal(t, "xfs", request.GetVolumeCapability().GetMount().GetFsType())
	require.Equal(t, []string{"noatime"}, request.GetVolumeCapability().GetMount().GetMountFlags())
	require.Equal(t, csiapi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
		request.GetVolumeCapability().GetAccessMode().GetMode())

	grown, err = p.ExpandVolume(t.Context(), grownVolume(func(pv *corev1.PersistentVolume) {
		pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		pv.Spec.CSI.ControllerExpandSecretRef = nil
	}), 99)
	require.NoError(t, err)
	require.False(t, grown.NodeExpansionRequired)
	require.NotNil(t, e.requests[1].GetVolumeCapability().GetBlock())
	require.Empty(t, e.requests[1].GetSecrets())

	_, err = p.ExpandVolume(t.Context(), grownVolume(func(pv *corev1.PersistentVolume) {
		pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteMany}
	}), 99)
	require.NoError(t, err)
	require.Equal(t, csiapi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
		e.requests[2].GetVolumeCapability().GetAccessMode().GetMode(), "the widest, as for publishing")
	_, err = p.ExpandVolume(t.Context(), grownVolume(func(pv *corev1.PersistentVolume) {
		pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany, corev1.ReadWriteOnce}
	}), 99)
	require.NoError(t, err)
	require.Equal(t, csiapi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
		e.requests[3].GetVolumeCapability().GetAccessMode().GetMode(), "as for publishing")

	e.err = status.Error(codes.OutOfRange, "too large")
	_, err = p.ExpandVolume(t.Context(), grownVolume(), 99)
	require.Equal(t, codes.OutOfRange, status.Code(err))
	_, err = p.ExpandVolume(t.Context(), grownVolume(func(pv *corev1.PersistentVolume) {
		pv.Spec.CSI.ControllerExpandSecretRef.Name = "gone"
	}), 99)
	require.ErrorContains(t, err, `get secret "vault/gone"`)
	_, sent := status.FromError(err)
	require.False(t, sent, "nothing was asked of the driver")
	require.Len(t, e.requests, 5)
}

func TestExpandCapabilities(t *testing.T) {
	for name, test := range map[string]struct {
		node []csiapi.NodeServiceCapability_RPC_Type
		want resize.Capabilities
	}{
		"neither":     {nil, resize.Capabilities{}},
		"nodes alone": {[]csiapi.NodeServiceCapability_RPC_Type{csiapi.NodeServiceCapability_RPC_EXPAND_VOLUME}, resize.Capabilities{Node: true}},
	} {
		t.Run(name, func(t *testing.T) {
			able, err := (&expandServer{fakeDriver: newFakeDriver(), node: test.node}).start(t).Capabilities(t.Context())
			require.NoError(t, err)
			require.Equal(t, test.want, able)
		})
	}
	able, err := withDriver(t, newFakeDriver(), csi.Config{}).Capabilities(t.Context())
	require.NoError(t, err, "a driver whose node service is elsewhere")
	require.Equal(t, resize.Capabilities{}, able)
}
