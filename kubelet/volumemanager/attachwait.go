package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/volume"
)

const (
	// minPollInterval and maxPollInterval bound the pause between two questions why a volume is not attached yet: the Node tells only of
	// those that are, and a node may read its VolumeAttachments and not watch them.
	minPollInterval = 2 * time.Second
	maxPollInterval = time.Minute
)

// errDriverChanged says that what is known of the device's driver changed.
var errDriverChanged = errors.New("what is known of the driver changed")

// attachWait is how somebody waits for a device to be attached.
type attachWait struct {
	name          string          // the device's
	driverChanged <-chan struct{} // closed when what is known of drivers changed
	onWait        func()          // called if it takes any waiting
	// attachError tells why attaching fails, nil if it does not or nobody knows. It may be nil.
	attachError func(ctx context.Context) error
}

// awaitAttached returns where the device is attached, once the API server knows that it is in use and the Node says
// that it is attached. When cured is closed meanwhile it gives errDriverChanged; when the node has no room for the device, it
// ends with that error.
func (d *deviceTable) awaitAttached(ctx context.Context, wait attachWait) (path string, err error) {
	poller := attachErrorPoller{clock: d.clock, attachError: wait.attachError}
	defer poller.stop()
	for waited := false; ; waited = true {
		d.mu.Lock()
		known, ok := d.byName[wait.name]
		reported := ok && d.reportedGeneration >= known.inUseGeneration
		path, attached := d.attached[wait.name]
		changed := d.attachedCh
		d.mu.Unlock()
		if reported && attached {
			return path, nil
		}
		if !waited {
			wait.onWait()
		}
		select {
		case <-changed:
		case <-wait.driverChanged:
			return "", errDriverChanged
		case <-poller.due():
			if err := poller.poll(ctx); volume.IsAttachLimitExceeded(err) {
				return "", err
			}
		case <-ctx.Done():
			if !reported {
				return "", fmt.Errorf("wait for the API server to know that volume %q is in use: %w", wait.name, ctx.Err())
			}
			return "", errors.Join(
				fmt.Errorf("wait for volume %q to be attached to this node: %w", wait.name, ctx.Err()), poller.last)
		}
	}
}

// attachErrorPoller asks now and then why something fails. It has no timer before due is called.
type attachErrorPoller struct {
	clock       clock.Clock
	attachError func(ctx context.Context) error
	timer       clock.Timer
	pause       time.Duration
	last        error // what it was told last
}

// due has a value when it is time to ask.
func (a *attachErrorPoller) due() <-chan time.Time {
	if a.attachError == nil {
		return nil
	}
	if a.timer == nil {
		a.pause = minPollInterval
		a.timer = a.clock.NewTimer(a.pause)
	}
	return a.timer.C()
}

func (a *attachErrorPoller) poll(ctx context.Context) error {
	a.last = a.attachError(ctx)
	a.pause = min(2*a.pause, maxPollInterval)
	a.timer.Reset(a.pause)
	return a.last
}

func (a *attachErrorPoller) stop() {
	if a.timer != nil {
		a.timer.Stop()
	}
}
