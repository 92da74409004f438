package csierr_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-dev/berth/internal/csierr"
)

func TestErrorsAfterTheTimeIsUpAreInterruptions(t *testing.T) {
	failed := status.Error(codes.Internal, "resize2fs: signal: killed")
	require.NoError(t, csierr.Classify(t.Context(), nil))
	require.Equal(t, failed, csierr.Classify(t.Context(), failed))

	lost, lose := context.WithCancel(t.Context())
	lose()
	require.NoError(t, csierr.Classify(lost, nil), "what is done is done")
	require.Equal(t, codes.Canceled, status.Code(csierr.Classify(lost, failed)))
	require.ErrorContains(t, csierr.Classify(lost, failed), "killed")
	said := status.Error(codes.Canceled, "as the driver words it")
	require.Equal(t, said, csierr.Classify(lost, said))

	late, end := context.WithTimeout(t.Context(), 0)
	defer end()
	require.Equal(t, codes.DeadlineExceeded, status.Code(csierr.Classify(late, failed)))
}
