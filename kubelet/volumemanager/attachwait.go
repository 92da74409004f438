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
	// firstAsk and lastAsk bound the pause between two questions why a volume is not attached yet: the Node tells only of
	// those that are, and a node may read its VolumeAttachments and not watch them.
	firstAsk = 2 * time.Second
	lastAsk  = time.Minute
)

// errAskAgain says that what is known of the device's driver changed.
var errAskAgain = errors.New("what is known of the driver changed")

// attachWait is how somebody waits for a device to be attached.
type attachWait struct {
	name  string          // the device's
	cured <-chan struct{} // closed when what is known of drivers changed
	began func()          // called if it takes any waiting
	// explain tells why attaching fails, nil if it does not or nobody knows. It may be nil.
	explain func(ctx context.Context) error
}

// awaitAttached returns where the device is attached, once the API server knows that it is in use and the Node says
// that it is attached. When cured is closed meanwhile it gives errAskAgain; when the node has no room for the device, it
// ends with that error.
func (d *devices) awaitAttached(ctx context.Context, wait attachWait) (path string, err error) {
	asking := asker{clock: d.clock, explain: wait.explain}
	defer asking.stop()
	for waited := false; ; waited = true {
		d.mu.Lock()
		known, ok := d.byName[wait.name]
		reported := ok && d.written >= known.listed
		path, attached := d.attached[wait.name]
		changed := d.changed
		d.mu.Unlock()
		if reported && attached {
			return path, nil
		}
		if !waited {
			wait.began()
		}
		select {
		case <-changed:
		case <-wait.cured:
			return "", errAskAgain
		case <-asking.due():
			if err := asking.ask(ctx); volume.IsAttachLimitExceeded(err) {
				return "", err
			}
		case <-ctx.Done():
			if !reported {
				return "", fmt.Errorf("wait for the API server to know that volume %q is in use: %w", wait.name, ctx.Err())
			}
			return "", errors.Join(
				fmt.Errorf("wait for volume %q to be attached to this node: %w", wait.name, ctx.Err()), asking.last)
		}
	}
}

// asker asks now and then why something fails. It has no timer before due is called.
type asker struct {
	clock   clock.Clock
	explain func(ctx context.Context) error
	timer   clock.Timer
	pause   time.Duration
	last    error // what it was told last
}

// due has a value when it is time to ask.
func (a *asker) due() <-chan time.Time {
	if a.explain == nil {
		return nil
	}
	if a.timer == nil {
		a.pause = firstAsk
		a.timer = a.clock.NewTimer(a.pause)
	}
	return a.timer.C()
}

func (a *asker) ask(ctx context.Context) error {
	a.last = a.explain(ctx)
	a.pause = min(2*a.pause, lastAsk)
	a.timer.Reset(a.pause)
	return a.last
}

func (a *asker) stop() {
	if a.timer != nil {
		a.timer.Stop()
	}
}
