package csi

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestErrorOfAnInterruptedCallIsUncertain is about a response that arrives when the caller's context ends, which no real
// driver can be made to send. If it counted as final, a volume that the driver mounts later would never be unmounted.
func TestErrorOfAnInterruptedCallIsUncertain(t *testing.T) {
	ctx, lose := context.WithCancel(t.Context())
	defer lose()
	fail := func(before func()) error {
		return callDriver(ctx, "disk.example.com", "NodeStageVolume", "pv", func(context.Context) error {
			before()
			return status.Error(codes.Internal, "mount: signal: killed")
		})
	}
	require.False(t, isUncertainStatus(fail(func() {})), "the context has not ended: the error is final")
	err := fail(lose)
	require.True(t, isUncertainStatus(err))
	require.ErrorContains(t, err, "mount: signal: killed")
}
