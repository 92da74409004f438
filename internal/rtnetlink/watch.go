package rtnetlink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/wakeup"
)

// MinBackoff and maxBackoff bound the wait before the kernel is subscribed to again after the subscription failed.
const (
	MinBackoff = 100 * time.Millisecond
	maxBackoff = 30 * time.Second
)

// Deps are what a Watcher works with. OnChange is required.
type Deps struct {
	// OnChange is called once at the start and after each loss of notifications, and then whenever a relevant notification
	// came. The next notification waits for it.
	OnChange func(ctx context.Context)
	Clock    clock.WithTicker
	Logger   *slog.Logger
}

// Config says which notifications a Watcher gets. Both fields are required.
type Config struct {
	// Groups are the multicast groups of rtnetlink(7), RTNLGRP_….
	Groups []uint
	// Relevant reports whether a notification of the kernel matters.
	Relevant func(message syscall.NetlinkMessage) bool
}

// Watcher follows the kernel's notifications.
type Watcher struct {
	deps   Deps
	config Config
}

// New returns a Watcher.
func New(deps Deps, config Config) (*Watcher, error) {
	switch {
	case deps.OnChange == nil:
		return nil, errors.New("rtnetlink: Deps.OnChange is required")
	case len(config.Groups) == 0 || config.Relevant == nil:
		return nil, errors.New("rtnetlink: Config.Groups and Config.Relevant are required")
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	return &Watcher{deps: deps, config: config}, nil
}

// Start follows the notifications until ctx ends. It subscribes in the network namespace of the calling thread.
func (w *Watcher) Start(ctx context.Context) error {
	for backoff := MinBackoff; ; backoff = min(2*backoff, maxBackoff) {
		received, err := w.listen(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if received {
			backoff = MinBackoff
		}
		// The kernel drops messages that are not read in time. OnChange after subscribing again finds what they reported.
		w.deps.Logger.Warn("lost the kernel's notifications; restarting the watch", "backoff", backoff, "error", err)
		if !wakeup.Sleep(ctx, w.deps.Clock, backoff) {
			return nil
		}
	}
}

// listen calls OnChange once and then after each relevant notification, until an error or the end of ctx. It reports
// whether it received any.
func (w *Watcher) listen(ctx context.Context) (received bool, err error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, w.config.Groups...)
	if err != nil {
		return false, fmt.Errorf("subscribe to the kernel's network changes: %w", err)
	}
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(closed)
		socket.Close()
	})
	defer func() {
		if stop() {
			socket.Close()
			return
		}
		<-closed
	}()
	w.deps.OnChange(ctx)
	for {
		messages, from, err := socket.Receive()
		if err != nil {
			return received, fmt.Errorf("receive the kernel's network changes: %w", err)
		}
		received = true
		if from.Pid == nl.PidKernel && slices.ContainsFunc(messages, w.config.Relevant) {
			w.deps.OnChange(ctx)
		}
	}
}
