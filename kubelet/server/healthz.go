package server

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
)

// checkTimeout is how long a component may take to respond before it counts as hanging. A busy machine takes some seconds.
const checkTimeout = 30 * time.Second

// Checks returns the health checks of /healthz beside ping: the log, and syncLoop, a call that blocks while changes of
// Pods cannot be handled.
func Checks(clock clock.Clock, syncLoop func()) []healthz.HealthChecker {
	return []healthz.HealthChecker{
		&responsiveCheck{name: "log", clock: clock, probe: klog.Flush},
		&responsiveCheck{name: "syncloop", clock: clock, probe: syncLoop},
	}
}

// CheckHealth runs the checks and returns the first failure.
func CheckHealth(ctx context.Context, checks []healthz.HealthChecker) error {
	for _, check := range checks {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "/healthz", http.NoBody)
		if err != nil {
			return err
		}
		if err := check.Check(request); err != nil {
			return fmt.Errorf("health check %s: %w", check.Name(), err)
		}
	}
	return nil
}

// responsiveCheck fails if a component does not respond. However many requests there are, one probe runs at a time.
type responsiveCheck struct {
	name  string
	clock clock.Clock
	probe func()

	mu       sync.Mutex    // guards below
	inFlight chan struct{} // nil while no probe runs; closed when it has returned
	since    time.Time
}

var _ healthz.HealthChecker = (*responsiveCheck)(nil)

// Name implements healthz.HealthChecker.
func (c *responsiveCheck) Name() string { return c.name }

// Check implements healthz.HealthChecker. It waits for the probe, at most until checkTimeout and the end of the request.
func (c *responsiveCheck) Check(r *http.Request) error {
	responded, since := c.startProbe()
	if left := since.Add(checkTimeout).Sub(c.clock.Now()); left > 0 {
		timer := c.clock.NewTimer(left)
		defer timer.Stop()
		select {
		case <-responded:
			return nil
		case <-timer.C():
		case <-r.Context().Done():
		}
	}
	select {
	case <-responded: // it takes precedence over the others
		return nil
	default:
		return fmt.Errorf("no response since %v", since.Format(time.RFC3339))
	}
}

// startProbe starts a probe unless one is running.
func (c *responsiveCheck) startProbe() (responded <-chan struct{}, since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inFlight == nil {
		done := make(chan struct{})
		c.inFlight, c.since = done, c.clock.Now()
		go func() { // it ends when the component responds; one that never does is why this process has to be restarted
			contain.Guard("server.probe", "", c.probe)()
			c.mu.Lock()
			defer c.mu.Unlock()
			c.inFlight = nil
			close(done)
		}()
	}
	return c.inFlight, c.since
}
