package csi

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestErrorOfAnInterruptedCallIsUncertain is about an answer that comes just as the caller's patience ends, which no real
// driver can be made to give. Taken for the driver's word, a volume that it goes on to mount would never be unmounted.
func TestErrorOfAnInterruptedCallIsUncertain(t *testing.T) {
	ctx, lose := context.WithCancel(t.Context())
	defer lose()
	fail := func(before func()) error {
		return callDriver(ctx, "disk.example.com", "NodeStageVolume", "pv", func(context.Context) error {
			before()
			return status.Error(codes.Internal, "mount: signal: killed")
		})
	}
	require.False(t, isUncertainStatus(fail(func() {})), "there was time: the driver means it")
	err := fail(lose)
	require.True(t, isUncertainStatus(err))
	require.ErrorContains(t, err, "mount: signal: killed")
}
