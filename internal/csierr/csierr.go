// Package csierr reads what a CSI driver says when a call of it fails: whether that is its word, or it was interrupted.
package csierr

import (
	"context"

	"google.golang.org/grpc/status"
)

// Classify is how the error of a call is to be read; ctx is the call's own. Whatever the error says when the call's time is
// up, the driver was interrupted: its time ends with ours, and a tool that was killed for that reads like any failure. Then
// the code is Canceled or DeadlineExceeded, which the CSI specification has the caller take for an open end.
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
