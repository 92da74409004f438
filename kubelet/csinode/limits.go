package csinode

import (
	"context"
	"time"
)

// answerTime bounds how long a driver may take to tell its limit: others are asked after it.
const answerTime = 10 * time.Second

// AskLimit has the driver asked again how many volumes this node can have. It does not block.
func (m *Manager) AskLimit(driver string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.known[driver]; ok {
		m.asked[driver] = struct{}{}
		poke(m.limits)
	}
}

// PeriodsChanged says that drivers came, or that they may want to be asked for their limits more or less often than
// before. It does not block.
func (m *Manager) PeriodsChanged() { poke(m.limits) }

func poke(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// keepLimits asks drivers for their limits when they want it, until ctx ends. It has no timer while none does.
func (m *Manager) keepLimits(ctx context.Context) {
	for {
		due, next := m.dueLimits()
		for _, name := range due {
			m.renewLimit(ctx, name)
		}
		if len(due) > 0 {
			continue
		}
		if !m.awaitLimits(ctx, next) {
			return
		}
	}
}

// awaitLimits waits for the moment, if there is one, or until somebody asks. It returns false when ctx has ended.
func (m *Manager) awaitLimits(ctx context.Context, next time.Duration) bool {
	var tick <-chan time.Time
	if next > 0 {
		timer := m.deps.Clock.NewTimer(next)
		defer timer.Stop()
		tick = timer.C()
	}
	select {
	case <-ctx.Done():
		return false
	case <-m.limits:
	case <-tick:
	}
	return true
}

// dueLimits takes the drivers that are to be asked now, and tells in how long the next one is; 0 is never.
func (m *Manager) dueLimits() (due []string, next time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.deps.Clock.Now()
	for name := range m.known {
		_, asked := m.asked[name]
		period := m.deps.LimitPeriod(name)
		left := period - now.Sub(m.told[name])
		switch {
		case asked || period > 0 && left <= 0:
			due = append(due, name)
			m.told[name] = now // whether it answers or not
		case period > 0 && (next == 0 || left < next):
			next = left
		}
	}
	clear(m.asked)
	return due, next
}

// renewLimit asks one driver, and writes its answer down if it is another than before.
func (m *Manager) renewLimit(ctx context.Context, name string) {
	if err := m.tryRenewLimit(ctx, name); err != nil && ctx.Err() == nil {
		m.deps.Logger.Warn("a csi driver did not tell its limit, its last answer stays", "driver", name, "error", err)
	}
}

func (m *Manager) tryRenewLimit(ctx context.Context, name string) error {
	driver, err := m.deps.Drivers.Get(name)
	if err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	info, err := driver.NodeInfo(asking)
	if err != nil {
		return err
	}
	m.writing.Lock()
	defer m.writing.Unlock()
	if now, err := m.deps.Drivers.Get(name); err != nil || now != driver {
		return err // it went meanwhile, or another came, which has told its own
	}
	if err := m.write(ctx, name, info); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known[name] = info
	return nil
}
