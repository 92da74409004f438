package csianswer_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-dev/berth/internal/csianswer"
)

func TestErrorsAfterTheTimeIsUpAreInterruptions(t *testing.T) {
	failed := status.Error(codes.Internal, "resize2fs: signal: killed")
	require.NoError(t, csianswer.InTime(t.Context(), nil))
	require.Equal(t, failed, csianswer.InTime(t.Context(), failed))

	lost, lose := context.WithCancel(t.Context())
	lose()
	require.NoError(t, csianswer.InTime(lost, nil), "what is done is done")
	require.Equal(t, codes.Canceled, status.Code(csianswer.InTime(lost, failed)))
	require.ErrorContains(t, csianswer.InTime(lost, failed), "killed")
	said := status.Error(codes.Canceled, "as the driver words it")
	require.Equal(t, said, csianswer.InTime(lost, said))

	late, end := context.WithTimeout(t.Context(), 0)
	defer end()
	require.Equal(t, codes.DeadlineExceeded, status.Code(csianswer.InTime(late, failed)))
}
