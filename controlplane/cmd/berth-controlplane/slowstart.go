package main

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/controlplane/contain"
	"github.com/berth-dev/berth/controlplane/etcd"
)

// slowStart is when the API server's start is slow. It takes some seconds, or a minute if objects cannot be read.
const slowStart = 10 * time.Second

// checkedIfSlow returns a component's run that checks the store's values once if the component is not ready after slowStart, and calls damaged
// if one is.
func checkedIfSlow(
	clock clock.Clock, check func(context.Context) error, damaged func(error), run func(context.Context, func()) error,
) func(context.Context, func()) error {
	return func(ctx context.Context, ready func()) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		waiting, isReady := context.WithCancel(ctx)
		defer isReady()
		checked := make(chan struct{})
		go contain.Guard("controlplane.checkedIfSlow", func() {
			defer close(checked)
			timer := clock.NewTimer(slowStart)
			defer timer.Stop()
			select {
			case <-waiting.Done():
				return
			case <-timer.C():
			}
			if err := check(ctx); errors.Is(err, etcd.ErrDamagedValue) {
				damaged(err)
			} else if err != nil && ctx.Err() == nil {
				klog.ErrorS(err, "Failed to check the store's values, although the API server does not become ready")
			}
		})()
		err := run(ctx, func() {
			isReady()
			ready()
		})
		cancel()
		<-checked
		return err
	}
}
