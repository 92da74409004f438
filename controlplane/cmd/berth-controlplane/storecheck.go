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

const (
	// slowStart is when the API server's start is slow. It takes some seconds, or a minute if objects cannot be read.
	slowStart = 10 * time.Second
	// checkInterval is at least between two checks of the store: an object that was written like that stays unreadable.
	checkInterval = 10 * time.Minute
)

// storeCheck checks the values of the store if there is a sign of damage: an object cannot be read, or the API server does not become ready.
type storeCheck struct {
	clock clock.Clock
	// check returns an etcd.ErrDamagedValue if a value is damaged; damaged is called with it.
	check   func(context.Context) error
	damaged func(error)
	// unreadable holds at most one signal.
	unreadable chan struct{}
}

func newStoreCheck(clock clock.Clock, check func(context.Context) error, damaged func(error)) *storeCheck {
	return &storeCheck{clock: clock, check: check, damaged: damaged, unreadable: make(chan struct{}, 1)}
}

// suspect says that an object of the store cannot be read. It returns at once, and may be called by any goroutine.
func (s *storeCheck) suspect() {
	select {
	case s.unreadable <- struct{}{}:
	default:
	}
}

// beside returns the API server's run with the checks beside it, which end with it.
func (s *storeCheck) beside(run func(context.Context, func()) error) func(context.Context, func()) error {
	return func(ctx context.Context, ready func()) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		starting, isReady := context.WithCancel(ctx)
		defer isReady()
		ended := make(chan struct{})
		go contain.Guard("controlplane.storeCheck", func() {
			defer close(ended)
			s.watch(ctx, starting.Done())
		})()
		err := run(ctx, func() {
			isReady()
			ready()
		})
		cancel()
		<-ended
		return err
	}
}

// watch checks the store until ctx ends. started is closed when the API server is ready.
func (s *storeCheck) watch(ctx context.Context, started <-chan struct{}) {
	timer := s.clock.NewTimer(slowStart)
	defer timer.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-started:
			started = nil
			timer.Stop()
			continue
		case <-timer.C():
		case <-s.unreadable:
		}
		if !last.IsZero() && s.clock.Since(last) < checkInterval {
			continue
		}
		if err := s.check(ctx); errors.Is(err, etcd.ErrDamagedValue) {
			s.damaged(err)
			return
		} else if err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "Failed to check the store's values, although objects cannot be read or the API server does not become ready")
		}
		last = s.clock.Now()
	}
}
