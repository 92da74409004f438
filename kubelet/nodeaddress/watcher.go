package nodeaddress

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"
)

// initialBackoff and maxBackoff bound the wait before the kernel is listened to again, when that was broken off.
const (
	initialBackoff = 100 * time.Millisecond
	maxBackoff     = 30 * time.Second
)

// Deps are what a Follower works with. Book and Find are needed.
type Deps struct {
	// Store is kept true.
	Store *Store
	// Find says what the addresses are now. Its error means that nobody knows, as between two leases: the old ones stay
	// until the next change.
	Find func(ctx context.Context) ([]net.IP, error)
	// OnChange is told when the Book has other addresses. The next change waits for it.
	OnChange func(now []net.IP)
	Clock    clock.WithTicker
	Logger   *slog.Logger
}

// Watcher follows the node's addresses.
type Watcher struct{ deps Deps }

// New makes a Follower.
func New(deps Deps) (*Watcher, error) {
	if deps.Store == nil || deps.Find == nil {
		return nil, errors.New("follow the node's addresses: Deps.Book and Deps.Find are needed")
	}
	if deps.OnChange == nil {
		deps.OnChange = func([]net.IP) {}
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	return &Watcher{deps: deps}, nil
}

// Start follows until ctx ends. It listens in the network namespace of its caller's thread, and asks there.
func (w *Watcher) Start(ctx context.Context) error {
	for backoff := initialBackoff; ; backoff = min(2*backoff, maxBackoff) {
		received, err := w.listen(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if received {
			backoff = initialBackoff
		}
		// The kernel drops what nobody reads in time. What was missed is found by asking.
		w.deps.Logger.Warn("following the machine's addresses was broken off, trying again", "pause", backoff, "error", err)
		timer := w.deps.Clock.NewTimer(backoff)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// listen asks once, and then after each change that the kernel tells of, until an error or the end of ctx. heard is true
// if it was told of any.
func (w *Watcher) listen(ctx context.Context) (received bool, err error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return false, fmt.Errorf("listen to changes of addresses and routes: %w", err)
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
	w.refresh(ctx)
	for {
		messages, from, err := socket.Receive()
		if err != nil {
			return received, fmt.Errorf("hear of changes of addresses and routes: %w", err)
		}
		received = true
		if from.Pid == nl.PidKernel && slices.ContainsFunc(messages, relevant) {
			w.refresh(ctx)
		}
	}
}

// relevant reports whether the change may have changed the node's addresses. What comes and goes with each Pod, the
// addresses and routes that a link has for itself alone, does not.
func relevant(message syscall.NetlinkMessage) bool {
	switch message.Header.Type {
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return len(message.Data) >= unix.SizeofIfAddrmsg && nl.DeserializeIfAddrmsg(message.Data).Scope < unix.RT_SCOPE_LINK
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		if len(message.Data) < unix.SizeofRtMsg {
			return false
		}
		route := nl.DeserializeRtMsg(message.Data)
		if route.Table == unix.RT_TABLE_LOCAL {
			return false
		}
		attributes, err := nl.ParseRouteAttr(message.Data[unix.SizeofRtMsg:])
		return err == nil && !slices.ContainsFunc(attributes, func(a syscall.NetlinkRouteAttr) bool {
			return a.Attr.Type == unix.RTA_DST && net.IP(a.Value).IsLinkLocalUnicast()
		})
	}
	return false
}

// refresh asks what the addresses are, and tells if they are others.
func (w *Watcher) refresh(ctx context.Context) {
	now, err := w.deps.Find(ctx)
	previous := w.deps.Store.IPs()
	if err == nil && (len(now) == 0 || slices.ContainsFunc(now, net.IP.IsUnspecified)) {
		err = errors.New("the machine has no address") // a route may stay when the address goes
	}
	if err != nil {
		w.deps.Logger.Debug("the node's addresses are not known now: the old ones stay", "addresses", previous, "error", err)
		return
	}
	if slices.EqualFunc(previous, now, net.IP.Equal) {
		return
	}
	w.deps.Logger.Info("the node's addresses have changed", "before", previous, "now", now)
	w.deps.Store.set(now)
	w.deps.OnChange(now)
}
