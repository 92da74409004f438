package csi

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/wakeup"
)

// dialDelayMin and dialDelayMax bound the pause between two tries to connect to a driver whose socket is not created anew.
const dialDelayMin, dialDelayMax = 100 * time.Millisecond, 5 * time.Second

// dialer connects to a driver's socket, as gRPC asks for it. It makes the pauses between the tries itself: those of gRPC can be cut short by
// ClientConn.ResetConnectBackoff only, which iterates a map that other goroutines write (grpc-go pull request 9155), and that ends the
// process. It is safe for concurrent use.
type dialer struct {
	socket string
	clock  clock.Clock
	// created is notified when the socket has been created.
	created wakeup.Broadcast

	mu sync.Mutex // guards what follows
	// delay is the pause before the next try, none after a connection that has proved good.
	delay time.Duration
	// changed is closed when the socket is created after the last try.
	changed <-chan struct{}
}

func newDialer(socket string, clock clock.Clock) *dialer {
	return &dialer{socket: socket, clock: clock}
}

// dial connects to the socket. The first time it tries at once; after that it waits until the socket has been created anew, or for a pause
// that grows with each try. It has the signature that grpc.WithContextDialer wants.
func (d *dialer) dial(ctx context.Context, _ string) (net.Conn, error) {
	if err := d.pause(ctx); err != nil {
		return nil, fmt.Errorf("wait for the driver's socket %q: %w", d.socket, err)
	}
	var plain net.Dialer
	return plain.DialContext(ctx, "unix", d.socket)
}

// pause waits for the time of the next try, and counts it.
func (d *dialer) pause(ctx context.Context) error {
	d.mu.Lock()
	delay, changed := d.delay, d.changed
	d.mu.Unlock()
	anew := false
	if delay > 0 {
		timer := d.clock.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
			anew = true
		case <-timer.C():
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if anew {
		d.delay = 0
	}
	// Between its creation and its listen call a socket refuses connections, so that there is a short pause even then.
	d.delay, d.changed = min(max(2*d.delay, dialDelayMin), dialDelayMax), d.created.Changed()
	return nil
}

// proven records that a driver has responded: the next connection is tried at once.
func (d *dialer) proven() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.delay = 0
}
