package nodeaddress

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/rtnetlink"
)

// Deps are what a Watcher works with. Store and Find are required.
type Deps struct {
	// Store is updated.
	Store *Store
	// Find determines the current addresses. An error means that they are unknown, as between two leases: the Store
	// keeps its addresses until the next change.
	Find func(ctx context.Context) ([]net.IP, error)
	// OnChange is called when the Store has other addresses. The next change waits for it.
	OnChange func(now []net.IP)
	Clock    clock.WithTicker
	Logger   *slog.Logger
}

// Watcher follows the node's addresses.
type Watcher struct{ deps Deps }

// New returns a Watcher.
func New(deps Deps) (*Watcher, error) {
	switch {
	case deps.Store == nil:
		return nil, errors.New("nodeaddress: Deps.Store is required")
	case deps.Find == nil:
		return nil, errors.New("nodeaddress: Deps.Find is required")
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

// Start follows the addresses until ctx ends. It subscribes in the network namespace of the calling thread, and calls
// Find there.
func (w *Watcher) Start(ctx context.Context) error {
	watcher, err := rtnetlink.New(rtnetlink.Deps{OnChange: w.refresh, Clock: w.deps.Clock, Logger: w.deps.Logger}, rtnetlink.Config{
		Groups: []uint{
			unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
		},
		Relevant: relevant,
	})
	if err != nil {
		return err
	}
	return watcher.Start(ctx)
}

// relevant reports whether the notification may mean a change of the node's addresses. Addresses and routes that belong
// to a link alone, which come and go with every Pod, are not relevant.
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

// refresh determines the addresses and, if they differ from the Store's, updates it and calls OnChange.
func (w *Watcher) refresh(ctx context.Context) {
	now, err := w.deps.Find(ctx)
	previous := w.deps.Store.IPs()
	if err == nil && (len(now) == 0 || slices.ContainsFunc(now, net.IP.IsUnspecified)) {
		err = errors.New("the machine has no address") // a route may outlive its address
	}
	if err != nil {
		w.deps.Logger.Debug("node addresses unknown; keeping the previous ones", "addresses", previous, "error", err)
		return
	}
	if slices.EqualFunc(previous, now, net.IP.Equal) {
		return
	}
	w.deps.Logger.Info("node addresses changed", "previous", previous, "current", now)
	w.deps.Store.set(now)
	w.deps.OnChange(now)
}
