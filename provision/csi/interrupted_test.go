package csi

import (
	"context"
	"testing"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-dev/berth/provision"
)

// interruptedServer is a driver that responds just when the caller's context ends, which a real one cannot be made to do.
type interruptedServer struct {
	csiapi.ControllerClient
	lose func()
}

func (d interruptedServer) CreateVolume(
	context.Context, *csiapi.CreateVolumeRequest, ...grpc.CallOption,
) (*csiapi.CreateVolumeResponse, error) {
	d.lose()
	return nil, status.Error(codes.Internal, "mkfs: signal: killed")
}

func TestErrorOfAnInterruptedCallIsNotFinal(t *testing.T) {
	p := &Provisioner{config: Config{Name: "disk.example.com"}}
	ctx, lose := context.WithCancel(t.Context())
	defer lose()
	work := &plan{request: &csiapi.CreateVolumeRequest{Name: "pvc-1"}}

	_, state, err := p.create(ctx, interruptedServer{lose: func() {}}, work, true)
	require.ErrorContains(t, err, "killed")
	require.Equal(t, provision.ProvisioningFinished, state, "there was time: the driver means it")

	_, state, err = p.create(ctx, interruptedServer{lose: lose}, work, true)
	require.ErrorContains(t, err, "killed")
	require.Equal(t, provision.ProvisioningInBackground, state)
}
