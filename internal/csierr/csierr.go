// Package csierr classifies errors of CSI calls: whether the driver failed, or the call was interrupted.
package csierr

import (
	"context"

	"google.golang.org/grpc/status"
)

// Classify returns the error of a call with the right code; ctx is the call's context. If ctx is done the driver was
// interrupted, whatever its error says: its own context ends with ctx, and a tool that was killed for that fails like any
// other. Then the code is Canceled or DeadlineExceeded, after which the result is unknown by the CSI specification.
func Classify(ctx context.Context, err error) error {
	over := ctx.Err()
	if err == nil || over == nil {
		return err
	}
	if code := status.FromContextError(over).Code(); status.Code(err) != code {
		return status.Error(code, err.Error())
	}
	return err
}
