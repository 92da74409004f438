package idlememory

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/v2/core/events"
)

func TestReleasesOncePerIdlePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		received, released := make(chan *events.Envelope), 0
		go run(ctx, received, make(chan error), func() error {
			released++
			return errors.New("which does not end it")
		})
		for _, step := range []struct {
			wait  time.Duration
			event bool
			want  int
		}{
			{wait: idleAfter - time.Second, event: true, want: 0},
			{wait: idleAfter - time.Second, want: 0}, // the event began the wait again
			{wait: 2 * time.Second, want: 1},
			{wait: time.Hour, event: true, want: 1}, // idle all the time
			{wait: idleAfter + time.Second, want: 2},
		} {
			time.Sleep(step.wait)
			synctest.Wait()
			if released != step.want {
				t.Fatalf("released %d times after %v more, want %d", released, step.wait, step.want)
			}
			if step.event {
				received <- &events.Envelope{}
			}
		}
	})
}

func TestEndsWithTheSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := make(chan error, 1)
		failed <- errors.New("queue closed")
		run(t.Context(), make(chan *events.Envelope), failed, func() error { return nil })
	})
}
