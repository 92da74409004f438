package addresses

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

// firstPause and lastPause bound the wait before the kernel is listened to again, when that was broken off.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 30 * time.Second
)

// Deps are what a Follower works with. Book and Find are needed.
type Deps struct {
	// Book is kept true.
	Book *Book
	// Find says what the addresses are now. Its error means that nobody knows, as between two leases: the old ones stay
	// until the next change.
	Find func(ctx context.Context) ([]net.IP, error)
	// Changed is told when the Book has other addresses. The next change waits for it.
	Changed func(now []net.IP)
	Clock   clock.WithTicker
	Logger  *slog.Logger
}

// Follower follows the node's addresses.
type Follower struct{ deps Deps }

// New makes a Follower.
func New(deps Deps) (*Follower, error) {
	if deps.Book == nil || deps.Find == nil {
		return nil, errors.New("follow the node's addresses: Deps.Book and Deps.Find are needed")
	}
	if deps.Changed == nil {
		deps.Changed = func([]net.IP) {}
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	return &Follower{deps: deps}, nil
}

// Start follows until ctx ends. It listens in the network namespace of its caller's thread, and asks there.
func (f *Follower) Start(ctx context.Context) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		heard, err := f.listen(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if heard {
			pause = firstPause
		}
		// The kernel drops what nobody reads in time. What was missed is found by asking.
		f.deps.Logger.Warn("following the machine's addresses was broken off, trying again", "pause", pause, "error", err)
		timer := f.deps.Clock.NewTimer(pause)
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
func (f *Follower) listen(ctx context.Context) (heard bool, err error) {
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
	f.look(ctx)
	for {
		messages, from, err := socket.Receive()
		if err != nil {
			return heard, fmt.Errorf("hear of changes of addresses and routes: %w", err)
		}
		heard = true
		if from.Pid == nl.PidKernel && slices.ContainsFunc(messages, matters) {
			f.look(ctx)
		}
	}
}

// matters reports whether the change may have changed the node's addresses. What comes and goes with each Pod, the
// addresses and routes that a link has for itself alone, does not.
func matters(message syscall.NetlinkMessage) bool {
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

// look asks what the addresses are, and tells if they are others.
func (f *Follower) look(ctx context.Context) {
	now, err := f.deps.Find(ctx)
	before := f.deps.Book.IPs()
	if err == nil && (len(now) == 0 || slices.ContainsFunc(now, net.IP.IsUnspecified)) {
		err = errors.New("the machine has no address") // a route may stay when the address goes
	}
	if err != nil {
		f.deps.Logger.Debug("the node's addresses are not known now: the old ones stay", "addresses", before, "error", err)
		return
	}
	if slices.EqualFunc(before, now, net.IP.Equal) {
		return
	}
	f.deps.Logger.Info("the node's addresses have changed", "before", before, "now", now)
	f.deps.Book.set(now)
	f.deps.Changed(now)
}
