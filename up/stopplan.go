package up

import (
	"context"
	"time"

	"github.com/berth-dev/berth/internal/systemdunit"
)

const (
	// askStopTimeout bounds the question how systemd stops the service.
	askStopTimeout = 5 * time.Second
	// interactiveGrace is what a Pod gets when a user waits for the end.
	interactiveGrace = 10 * time.Second
	// maxServiceGrace is what all Pods get together at most when a service is stopped, and so when the machine shuts down.
	maxServiceGrace = 2 * time.Minute
	// stopMargin is what the end of all Pods may take beyond their grace periods: unmounting, and containers that ignore SIGTERM.
	stopMargin = 50 * time.Second
)

// stopPlan is how the components stop. The zero value is that a user stops them.
type stopPlan struct {
	// keepPods says that the Pods run on, for the next start.
	keepPods bool
	// service is how long systemd waits for the whole stop; 0 if it is not systemd that stops it.
	service time.Duration
}

// grace returns what the grace periods of ordinary Pods, and then those of critical ones, are limited to.
func (p stopPlan) grace() (ordinary, critical time.Duration) {
	if p.service == 0 {
		return interactiveGrace, interactiveGrace
	}
	all := min(p.service/2, maxServiceGrace)
	critical = all / 4
	return all - critical, critical
}

// podsTimeout bounds the end of all Pods: who is late is killed.
func (p stopPlan) podsTimeout() time.Duration {
	ordinary, critical := p.grace()
	if p.service == 0 {
		return ordinary + critical + stopMargin
	}
	return ordinary + critical + min(stopMargin, p.service/4)
}

// planStop finds out how the cluster, which is to stop, does that: it is stopped by its user, or by systemd, which may start it again at
// once. The Pods of a cluster in namespaces of its own end with these.
func (c *Cluster) planStop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askStopTimeout)
	defer cancel()
	var stop systemdunit.Stop
	inside := c.config.Inside != nil
	if c.askStop != nil {
		var err error
		if stop, err = c.askStop(ctx, inside); err != nil {
			c.logger.Warn("cannot find out how systemd stops this service; stopping the Pods", "error", err)
		}
	}
	c.stopPlan = stopPlan{keepPods: stop.Restart && !inside, service: stop.Timeout}
	switch {
	case c.stopPlan.keepPods:
		c.progress.Printf("stopping for a restart; the Pods run on")
	case c.stopPlan.service > 0:
		ordinary, critical := c.stopPlan.grace()
		c.progress.Printf("stopping; Pods have their grace periods, at most %v, and critical ones %v after that", ordinary, critical)
	default:
		c.progress.Printf("stopping (press Ctrl-C again to exit immediately)")
	}
}
