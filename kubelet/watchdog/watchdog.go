// Package watchdog notifies systemd that this process is ready and, as often as the unit's WatchdogSec requires, that
// it is healthy. An unhealthy process sends no notification, and systemd restarts it.
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

// minTimeout is the shortest watchdog timeout that is accepted: with less a busy machine would look like a dead
// process.
const minTimeout = time.Second

// Deps are what a Watchdog works with. Healthy is required.
type Deps struct {
	// Ready is closed when the process is ready; nil means from the start.
	Ready <-chan struct{}
	// Healthy returns why the process is unhealthy, or nil, within ctx.
	Healthy func(ctx context.Context) error
	// Logger and Clock may be nil.
	Logger *slog.Logger
	Clock  clock.WithTicker
}

// Watchdog notifies systemd. Start runs it.
type Watchdog struct {
	deps   Deps
	period time.Duration // zero if systemd expects no notifications
}

// New returns a Watchdog configured from the environment that systemd sets: NOTIFY_SOCKET, WATCHDOG_USEC and
// WATCHDOG_PID. Without them the Watchdog does nothing.
func New(deps Deps) (*Watchdog, error) {
	if deps.Healthy == nil {
		return nil, errors.New("watchdog: Deps.Healthy is required")
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return nil, fmt.Errorf("read systemd's watchdog timeout (WatchdogSec of the unit): %w", err)
	}
	if limit != 0 && limit <= minTimeout {
		return nil, fmt.Errorf("systemd's watchdog timeout (WatchdogSec of the unit) is %v: want more than %v", limit, minTimeout)
	}
	return &Watchdog{deps: deps, period: limit / 2}, nil
}

// Start sends notifications until ctx ends.
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

// check notifies systemd if the process is healthy.
func (w *Watchdog) check(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, w.period)
	defer cancel()
	if err := w.deps.Healthy(limited); err != nil {
		if ctx.Err() == nil {
			w.deps.Logger.Error("health check failed; withholding systemd watchdog ping", "error", err)
		}
		return
	}
	w.notify(daemon.SdNotifyWatchdog)
}

// notify sends a state to systemd, if systemd runs this process.
func (w *Watchdog) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		w.deps.Logger.Warn("failed to notify systemd", "state", state, "error", err)
	}
}
