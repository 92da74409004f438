package eviction

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/wakeup"
)

const (
	// observeTimeout bounds one measurement, and reclaimTimeout the removal of what is not used.
	observeTimeout = 10 * time.Second
	reclaimTimeout = 2 * time.Minute
	// gapAfterReport is the shortest time between two observations that the kernel's reports cause.
	gapAfterReport = 100 * time.Millisecond
	// cleanupTimeout bounds the wait for the end of an evicted Pod. Its own grace period comes on top.
	cleanupTimeout = 30 * time.Second
)

// Manager evicts Pods when the node runs short of a resource. Create it with New.
type Manager struct {
	deps       Deps
	config     Config
	configured []Threshold
	reported   wakeup.Signal // set by the kernel's reports

	// The fields below belong to the goroutine of Start.
	state      state
	thresholds []Threshold // the configured ones, adapted to layout
	layout     Layout
	layoutSet  bool
	lastError  string
	// inReclaim says that the reclaim under way was recorded in an event.
	inReclaim map[Signal]bool
	// helpless says that the log has it already that there is no Pod to evict.
	helpless map[Signal]bool
}

// New returns a Manager. thresholds are those of ParseThresholds, with those of WithAllocatable.
func New(deps Deps, config Config, thresholds []Threshold) (*Manager, error) {
	if err := deps.validate(); err != nil {
		return nil, err
	}
	return &Manager{
		deps: deps, config: config.WithDefaults(), configured: thresholds, reported: wakeup.NewSignal(),
		inReclaim: map[Signal]bool{}, helpless: map[Signal]bool{},
	}, nil
}

// Start observes the node and evicts Pods until ctx ends. Without thresholds it does nothing.
func (m *Manager) Start(ctx context.Context) error {
	if len(m.configured) == 0 {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(contain.Func("eviction.watch", "", func() error {
		if err := m.deps.Machine.Watch(ctx, m.reported.Notify); err != nil && ctx.Err() == nil {
			m.deps.Logger.Warn("the kernel does not report the use of memory; it is measured instead", "error", err)
		}
		return nil
	}))
	group.Go(contain.Func("eviction.loop", "", func() error {
		m.loop(ctx)
		return nil
	}))
	return group.Wait()
}

// loop observes on each report of the kernel, and when the timer fires.
func (m *Manager) loop(ctx context.Context) {
	for ctx.Err() == nil {
		wait := m.sync(ctx)
		if !m.sleep(ctx, min(wait, gapAfterReport), nil) {
			return
		}
		m.sleep(ctx, wait-gapAfterReport, m.reported.C())
	}
}

// sleep waits, also for wake, and reports whether ctx goes on.
func (m *Manager) sleep(ctx context.Context, wait time.Duration, wake <-chan struct{}) bool {
	if wait <= 0 {
		return ctx.Err() == nil
	}
	timer := m.deps.Clock.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-wake:
	case <-timer.C():
	}
	return ctx.Err() == nil
}

// sync observes, publishes the conditions, and acts upon the most urgent threshold. It returns the time to the next observation.
func (m *Manager) sync(ctx context.Context) time.Duration {
	observed := m.observe(ctx)
	now := m.deps.Clock.Now()
	m.state = m.state.next(m.thresholds, observed, now)
	m.publish(now)
	if due := m.state.dueThresholds(m.thresholds); len(due) > 0 {
		if !m.reclaim(ctx, due[0], observed[due[0].Signal]) {
			return maxInterval // nothing more can be done now
		}
		return minInterval
	}
	clear(m.inReclaim)
	clear(m.helpless)
	reported := map[Signal]bool{}
	for i := range m.thresholds {
		t := &m.thresholds[i]
		if o, known := observed[t.Signal]; known && t.distance(o, false) > 0 && !reported[t.Signal] {
			reported[t.Signal] = m.deps.Machine.Arm(t.Signal, m.nearest(t.Signal, o))
		}
	}
	return m.state.nextObservation(m.thresholds, observed, reported, m.config.PressureTransitionPeriod, now)
}

// nearest returns the distance to the nearest threshold of the signal that is not met.
func (m *Manager) nearest(signal Signal, o Observation) int64 {
	nearest := o.Available
	for i := range m.thresholds {
		if t := &m.thresholds[i]; t.Signal == signal {
			if distance := t.distance(o, false); distance > 0 {
				nearest = min(nearest, distance)
			}
		}
	}
	return nearest
}

// observe measures the machine, and adapts the thresholds to its file systems.
func (m *Manager) observe(ctx context.Context) Observations {
	ctx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	observed, layout, err := m.deps.Machine.Observe(ctx)
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != m.lastError && ctx.Err() == nil {
		m.lastError = text
		if err != nil {
			m.deps.Logger.Warn("failed to measure resources for eviction", "error", err)
		}
	}
	if !m.layoutSet || layout != m.layout {
		m.layout, m.layoutSet, m.state = layout, true, state{}
		m.thresholds = layout.thresholds(m.configured)
		m.deps.Logger.Debug("file systems of the node", "layout", layout.String(), "thresholds", len(m.thresholds))
	}
	return observed
}

// publish sets the conditions.
func (m *Manager) publish(now time.Time) {
	if m.deps.Pressure.set(m.state.conditions(m.thresholds, m.config.PressureTransitionPeriod, now)) {
		m.deps.OnPressure()
	}
}
