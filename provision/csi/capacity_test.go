package csi_test

import (
	"context"
	"errors"
	"testing"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/provision/csi"
)

func (f *fakeDriver) GetCapacity(_ context.Context, req *csiapi.GetCapacityRequest) (*csiapi.GetCapacityResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.capacityRequests = append(f.capacityRequests, req)
	return &csiapi.GetCapacityResponse{AvailableCapacity: 1000, MaximumVolumeSize: f.largest}, nil
}

func TestCapacityIsWhatTheDriverReports(t *testing.T) {
	f := newFakeDriver()
	f.rpcs, f.largest = append(f.rpcs, csiapi.ControllerServiceCapability_RPC_GET_CAPACITY), wrapperspb.Int64(400)
	socket := socketPath(t)
	f.serve(t, socket)
	p := started(t, csi.Deps{Client: fake.NewClientset()}, csi.Config{Name: driverName, Socket: socket})
	parameters := map[string]string{"tier": "gold", "csi.storage.k8s.io/fstype": "xfs",
		"csi.storage.k8s.io/provisioner-secret-name": "s", "csi.storage.k8s.io/provisioner-secret-namespace": "n"}
	available, largest, err := p.Capacity(t.Context(), parameters, map[string]string{"zone": "a"})
	require.NoError(t, err)
	require.EqualValues(t, 1000, available)
	require.Equal(t, ptr.To(int64(400)), largest)
	require.Len(t, f.capacityRequests, 1)
	require.Equal(t, map[string]string{"tier": "gold"}, f.capacityRequests[0].GetParameters(), "what is for us is kept from the driver")
	require.Equal(t, map[string]string{"zone": "a"}, f.capacityRequests[0].GetAccessibleTopology().GetSegments())

	for _, reported := range []*wrapperspb.Int64Value{nil, wrapperspb.Int64(0)} {
		f.mu.Lock()
		f.largest = reported
		f.mu.Unlock()
		_, largest, err = p.Capacity(t.Context(), nil, nil)
		require.NoError(t, err)
		require.Equal(t, reported == nil, largest == nil, "0 is a size in which no volume fits")
	}

	_, _, err = p.Capacity(t.Context(), map[string]string{"csi.storage.k8s.io/unknown": "x"}, nil)
	require.ErrorContains(t, err, "csi.storage.k8s.io/unknown")
}

func TestCapacityUnsupported(t *testing.T) {
	f := newFakeDriver()
	socket := socketPath(t)
	f.serve(t, socket)
	p := started(t, csi.Deps{Client: fake.NewClientset()}, csi.Config{Name: driverName, Socket: socket})
	_, _, err := p.Capacity(t.Context(), nil, nil)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, driverName)
	require.Empty(t, f.capacityRequests)
}
