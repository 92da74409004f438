package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/fswatch"
	"github.com/berth-dev/berth/internal/wakeup"
)

// notReadyMin and notReadyMax bound the time between two probes of a driver that serves and is not ready yet: CSI has no
// event for that.
const notReadyMin, notReadyMax = 500 * time.Millisecond, 10 * time.Second

// NotifyAvailable calls notify each time that the driver reports its capabilities on a new connection, until ctx ends: when
// it has started, and when it is back. What failed because it was away may succeed then. notify must not block.
func (p *Provisioner) NotifyAvailable(ctx context.Context, notify func()) error {
	for changed := p.driver.available.Changed(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
		changed = p.driver.available.Changed()
		notify()
	}
}

// Conn returns the connection to the driver, for clients of services that a Provisioner does not call. Start keeps it and
// closes it.
func (p *Provisioner) Conn() (grpc.ClientConnInterface, error) { return p.driver.connect() }

// start keeps the connection, and reconnects as soon as the driver's socket is created.
func (d *driver) start(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, d.close()) }()
	d.mu.Lock()
	d.startCtx = ctx
	d.mu.Unlock()
	if _, err := d.connect(); err != nil {
		return err
	}
	watcher := fswatch.New(d.logger, "socket of the driver "+d.config.Name)
	defer watcher.Close()
	watches := true
	if err := watcher.Add(filepath.Dir(d.config.Socket)); err != nil {
		watches = false
		d.logger.Warn("cannot watch the directory of the driver's socket; trying to connect periodically", "error", err)
	}
	prober := newProber(ctx, d)
	defer prober.stop()
	prober.begin()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-prober.done:
			if prober.ended(err); errors.Is(err, errWrongDriver) && prober.count == 1 {
				return err
			}
		case <-d.ended.C():
			if _, err := os.Lstat(d.config.Socket); err == nil || !watches {
				prober.begin() // otherwise the creation of the socket says when
			}
		case event := <-watcher.Events():
			if event.Name == d.config.Socket && event.Has(fsnotify.Create) {
				d.dialer.created.Notify()
				prober.begin()
			}
		case err := <-watcher.Errors():
			d.logger.Warn("failed to watch the driver's socket", "error", err)
		}
	}
}

// prober reads the capabilities of a driver that has started, so that those who wait for it are notified before anyone
// calls it. Its methods are called from one goroutine.
type prober struct {
	driver *driver
	ctx    context.Context
	cancel context.CancelFunc
	// done receives the result of the probe that runs.
	done    chan error
	running bool
	// again is set if the driver was lost or came back while a probe ran.
	again bool
	// count is how many probes have ended.
	count int
}

func newProber(ctx context.Context, d *driver) *prober {
	ctx, cancel := context.WithCancel(ctx)
	return &prober{driver: d, ctx: ctx, cancel: cancel, done: make(chan error, 1)}
}

// begin starts to read the capabilities, which waits for the connection.
func (g *prober) begin() {
	if g.running {
		g.again = true
		return
	}
	g.running, g.again = true, false
	go func() {
		g.done <- contain.Do("csi.prober", "", func() error { return g.driver.waitAvailable(g.ctx) })
	}()
}

// ended records that a probe has ended with err.
func (g *prober) ended(err error) {
	g.count++
	g.running = false
	if err != nil && g.ctx.Err() == nil {
		g.driver.logger.Warn("failed to read the driver's capabilities; each call tries again", "error", err)
	}
	if g.again {
		g.begin()
	}
}

// stop ends the probe that runs.
func (g *prober) stop() {
	g.cancel()
	if g.running {
		<-g.done
	}
}

// waitAvailable reads the capabilities of the driver, as soon as it serves and is ready.
func (d *driver) waitAvailable(ctx context.Context) error {
	for delay := notReadyMin; ; delay = min(2*delay, notReadyMax) {
		_, _, err := d.controller(ctx)
		if !errors.Is(err, errNotReady) {
			return err
		}
		if !wakeup.Sleep(ctx, clock.RealClock{}, delay) {
			return fmt.Errorf("wait for driver %q to be ready: %w", d.config.Name, ctx.Err())
		}
	}
}
