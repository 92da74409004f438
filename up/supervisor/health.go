package supervisor

import (
	"context"
	"fmt"
	"net"
	"time"

	"k8s.io/utils/clock"
)

// Health is how a program shows that it does not hang: it replies on a socket. Before its first reply a program may take long,
// so that a slow start is not a hang.
type Health struct {
	// Network and Address are those of net.Dial.
	Network string `json:"network"`
	Address string `json:"address"`
	// Send is what to send; any reply of at least one byte is good.
	Send []byte `json:"send,omitempty"`
	// Timeout is how long a reply may take, Failures how many in a row may fail before the program counts as hung.
	Timeout  time.Duration `json:"timeout"`
	Failures int           `json:"failures"`
}

const (
	// healthPeriod is the time between two checks of a program, and startPeriod that before its first reply.
	healthPeriod = 10 * time.Second
	startPeriod  = time.Second
	// startLimit is how long a program may take to its first reply. The slowest machines need some minutes for the control plane.
	startLimit = 10 * time.Minute
)

// watch returns an error when the program hangs, and nil when ctx is done. It calls responds at the first reply.
func (h Health) watch(ctx context.Context, source clock.WithTicker, responds func()) error {
	seen, failures, began := false, 0, source.Now()
	for {
		err := h.check(ctx)
		period := healthPeriod
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			if !seen {
				responds()
			}
			seen, failures = true, 0
		case !seen && source.Since(began) >= startLimit:
			return fmt.Errorf("it did not respond within %v of its start: %w", startLimit, err)
		case !seen:
			period = startPeriod
		default:
			if failures++; failures >= h.Failures {
				return fmt.Errorf("%d checks of its health in a row failed: %w", failures, err)
			}
		}
		timer := source.NewTimer(period)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// check fails unless the program replies in time.
func (h Health) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, h.Timeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, h.Network, h.Address)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if len(h.Send) > 0 { // even an empty write fails if the program has replied and closed the connection already
		if _, err := conn.Write(h.Send); err != nil {
			return err
		}
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}
