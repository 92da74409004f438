package guard

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
)

// Go runs f in a goroutine. A panic there is logged with its stack, under the name.
func Go(ctx context.Context, name string, f func()) {
	go func() {
		defer logPanic(ctx, name)
		f()
	}()
}

func logPanic(ctx context.Context, name string) {
	if cause := recover(); cause != nil {
		log.G(ctx).WithField("goroutine", name).WithField("stack", string(debug.Stack())).Errorf("panic: %v", cause)
	}
}

// Unary is an interceptor for a server: a request whose handler panics fails with an internal error, and the stack is logged.
func Unary(ctx context.Context, unmarshal ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo, method ttrpc.Method) (reply any, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			log.G(ctx).WithField("request", info.FullMethod).WithField("stack", string(debug.Stack())).Errorf("panic: %v", cause)
			err = errgrpc.ToGRPC(fmt.Errorf("request %s: panic: %v: %w", info.FullMethod, cause, errdefs.ErrInternal))
		}
	}()
	return method(ctx, unmarshal)
}
