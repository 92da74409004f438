// Package watchdog tells systemd how this process is: that it is ready, and, as often as the unit's WatchdogSec wants to
// hear it, that it is healthy. What is not healthy says nothing, and systemd restarts it.
package watchdog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"k8s.io/utils/clock"
)

// minTimeout is the shortest watchdog time that is taken: below it a busy machine would look like a dead process.
const minTimeout = time.Second

// Deps are what a Watchdog needs from others.
type Deps struct {
	// Ready is closed when the process can be used; nil if it can from the start.
	Ready <-chan struct{}
	// Healthy returns why the process is not healthy, within ctx.
	Healthy func(ctx context.Context) error
	// Logger and Clock may be nil.
	Logger *slog.Logger
	Clock  clock.WithTicker
}

// Watchdog speaks to systemd. Start runs it.
type Watchdog struct {
	deps   Deps
	period time.Duration // zero if systemd wants to hear nothing
}

// New makes a Watchdog from the environment that systemd has given this process: NOTIFY_SOCKET, WATCHDOG_USEC and
// WATCHDOG_PID. Without them it does nothing.
func New(deps Deps) (*Watchdog, error) {
	if deps.Healthy == nil {
		return nil, errors.New("watchdog: Deps.Healthy is needed")
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return nil, fmt.Errorf("read systemd's watchdog time (WatchdogSec of the unit): %w", err)
	}
	if limit != 0 && limit <= minTimeout {
		return nil, fmt.Errorf("systemd's watchdog time (WatchdogSec of the unit) is %v: want more than %v", limit, minTimeout)
	}
	return &Watchdog{deps: deps, period: limit / 2}, nil
}

// Start speaks until ctx ends.
func (w *Watchdog) Start(ctx context.Context) error {
	if w.deps.Ready != nil {
		select {
		case <-w.deps.Ready:
		case <-ctx.Done():
			return nil
		}
	}
	w.notify(daemon.SdNotifyReady)
	defer w.notify(daemon.SdNotifyStopping)
	if w.period == 0 {
		<-ctx.Done()
		return nil
	}
	ticker := w.deps.Clock.NewTicker(w.period)
	defer ticker.Stop()
	for {
		w.check(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// check says that the process is healthy, if it is.
func (w *Watchdog) check(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, w.period)
	defer cancel()
	if err := w.deps.Healthy(limited); err != nil {
		if ctx.Err() == nil {
			w.deps.Logger.Error("systemd is not told that this process is healthy, for it is not", "error", err)
		}
		return
	}
	w.notify(daemon.SdNotifyWatchdog)
}

// notify sends one word to systemd, if there is one.
func (w *Watchdog) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		w.deps.Logger.Warn("telling systemd failed", "word", state, "error", err)
	}
}
