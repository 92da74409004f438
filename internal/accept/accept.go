// Package accept takes connections from a listener whose process may have no descriptors left for a while.
package accept

import (
	"context"
	"net"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/statefile"
	"github.com/berth-dev/berth/internal/wakeup"
)

// pause is the time between two attempts. Clients wait in the listener's queue meanwhile.
const pause = 100 * time.Millisecond

// Next returns the next connection. An error that ends by itself, such as EMFILE, has it try again until ctx ends; any other is returned.
func Next(ctx context.Context, listener net.Listener) (net.Conn, error) {
	for {
		conn, err := listener.Accept()
		if err == nil || !statefile.IsPassing(err) || !wakeup.Sleep(ctx, clock.RealClock{}, pause) {
			return conn, err
		}
	}
}
