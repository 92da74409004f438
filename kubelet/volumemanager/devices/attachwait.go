package devices

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/volume"
)

const (
	// minPollInterval and maxPollInterval bound the interval in which the reason for a missing attachment is read: the
	// Node lists only volumes that are attached, and a node may read its VolumeAttachments but not watch them.
	minPollInterval = 2 * time.Second
	maxPollInterval = time.Minute
)

// ErrDriverChanged is the error of WaitAttached when what is known about drivers has changed: whether the device has to
// be attached must be decided again.
var ErrDriverChanged = errors.New("the set of drivers changed")

// AttachWait describes a wait for the attachment of a device.
type AttachWait struct {
	Device string
	// DriversChanged is closed when what is known about drivers has changed: a RetrySignal from before that was read.
	DriversChanged <-chan struct{}
	// OnWait is called if the device is not attached yet.
	OnWait func()
	// AttachError, if not nil, returns why the last attempt to attach failed, nil if none did as far as is known.
	AttachError func(ctx context.Context) error
}

// WaitAttached returns the path of the device, once the API server has stored that the device is in use and the Node
// reports that it is attached. It returns ErrDriverChanged when DriversChanged is closed meanwhile, and the error of
// AttachError if that is an AttachLimitExceeded.
func (t *Table) WaitAttached(ctx context.Context, wait AttachWait) (path string, err error) {
	poller := attachErrorPoller{clock: t.deps.Clock, attachError: wait.AttachError}
	defer poller.stop()
	for waited := false; ; waited = true {
		changed := t.attachChanged.Changed()
		t.mu.Lock()
		known, ok := t.byName[wait.Device]
		reported := ok && t.reportedGeneration >= known.inUseGeneration
		path, attached := t.attached[wait.Device]
		t.mu.Unlock()
		if reported && attached {
			return path, nil
		}
		if !waited {
			wait.OnWait()
		}
		select {
		case <-changed:
		case <-wait.DriversChanged:
			return "", ErrDriverChanged
		case <-poller.due():
			if err := poller.poll(ctx); volume.IsAttachLimitExceeded(err) {
				return "", err
			}
		case <-ctx.Done():
			if !reported {
				return "", fmt.Errorf("wait for the API server to store that volume %q is in use: %w", wait.Device, ctx.Err())
			}
			return "", errors.Join(
				fmt.Errorf("wait for volume %q to be attached to this node: %w", wait.Device, ctx.Err()), poller.last)
		}
	}
}

// attachErrorPoller reads, with growing intervals, why an attach fails. It has no timer before due is called.
type attachErrorPoller struct {
	clock       clock.Clock
	attachError func(ctx context.Context) error
	timer       clock.Timer
	interval    time.Duration
	last        error // the result of the last poll
}

// due returns a channel that has a value when it is time to poll.
func (p *attachErrorPoller) due() <-chan time.Time {
	if p.attachError == nil {
		return nil
	}
	if p.timer == nil {
		p.interval = minPollInterval
		p.timer = p.clock.NewTimer(p.interval)
	}
	return p.timer.C()
}

func (p *attachErrorPoller) poll(ctx context.Context) error {
	p.last = p.attachError(ctx)
	p.interval = min(2*p.interval, maxPollInterval)
	p.timer.Reset(p.interval)
	return p.last
}

func (p *attachErrorPoller) stop() {
	if p.timer != nil {
		p.timer.Stop()
	}
}
