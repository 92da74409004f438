package csinode

import (
	"context"
	"time"
)

// refreshTimeout bounds a driver's response to a refresh: other drivers wait for it.
const refreshTimeout = 10 * time.Second

// RefreshAllocatable requests that the driver's volume limit for this node is read again. It does not block.
func (m *Manager) RefreshAllocatable(driver string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.infos[driver]; ok {
		m.requested[driver] = struct{}{}
		m.refreshWakeup.Notify()
	}
}

// RefreshPeriodsChanged must be called when the results of Deps.RefreshPeriod may have changed. It does not block.
func (m *Manager) RefreshPeriodsChanged() { m.refreshWakeup.Notify() }

// refreshLoop reads drivers' volume limits when they are due, until ctx ends. It has no timer while no driver has a
// refresh period.
func (m *Manager) refreshLoop(ctx context.Context) {
	for {
		due, next := m.dueRefreshes()
		for _, name := range due {
			m.refresh(ctx, name)
		}
		if len(due) > 0 {
			continue
		}
		if !m.waitRefresh(ctx, next) {
			return
		}
	}
}

// waitRefresh waits until next has passed, if it is not zero, or until a refresh is requested. It returns false when
// ctx has ended.
func (m *Manager) waitRefresh(ctx context.Context, next time.Duration) bool {
	var tick <-chan time.Time
	if next > 0 {
		timer := m.deps.Clock.NewTimer(next)
		defer timer.Stop()
		tick = timer.C()
	}
	select {
	case <-ctx.Done():
		return false
	case <-m.refreshWakeup.C():
	case <-tick:
	}
	return true
}

// dueRefreshes removes and returns the drivers that are due now, and the time until the next one is; 0 means none.
func (m *Manager) dueRefreshes() (due []string, next time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.deps.Clock.Now()
	for name := range m.infos {
		_, requested := m.requested[name]
		period := m.deps.RefreshPeriod(name)
		left := period - now.Sub(m.lastRefresh[name])
		switch {
		case requested || period > 0 && left <= 0:
			due = append(due, name)
			m.lastRefresh[name] = now // whether it responds or not
		case period > 0 && (next == 0 || left < next):
			next = left
		}
	}
	clear(m.requested)
	return due, next
}

// refresh reads one driver's limit and publishes it if it has changed.
func (m *Manager) refresh(ctx context.Context, name string) {
	if err := m.tryRefresh(ctx, name); err != nil && ctx.Err() == nil {
		m.deps.Logger.Warn("failed to refresh volume limit of CSI driver; keeping the previous one", "driver", name, "error", err)
	}
}

func (m *Manager) tryRefresh(ctx context.Context, name string) error {
	driver, err := m.deps.Drivers.Get(name)
	if err != nil {
		return err
	}
	callCtx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	info, err := driver.NodeInfo(callCtx)
	if err != nil {
		return err
	}
	m.writeMu.Lock()
	defer m.writeMu.Unlock()
	if now, err := m.deps.Drivers.Get(name); err != nil || now != driver {
		return err // it was removed meanwhile, or replaced by another, which was registered with its own limit
	}
	if err := m.write(ctx, name, info); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.infos[name] = info
	return nil
}
