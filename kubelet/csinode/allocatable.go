package csinode

import (
	"context"
	"time"
)

// refreshTimeout bounds how long a driver may take to tell its limit: others are asked after it.
const refreshTimeout = 10 * time.Second

// RefreshAllocatable has the driver asked again how many volumes this node can have. It does not block.
func (m *Manager) RefreshAllocatable(driver string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.infos[driver]; ok {
		m.requested[driver] = struct{}{}
		poke(m.refreshWakeup)
	}
}

// RefreshPeriodsChanged says that drivers came, or that they may want to be asked for their limits more or less often than
// before. It does not block.
func (m *Manager) RefreshPeriodsChanged() { poke(m.refreshWakeup) }

func poke(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// refreshLoop asks drivers for their limits when they want it, until ctx ends. It has no timer while none does.
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

// waitRefresh waits for the moment, if there is one, or until somebody asks. It returns false when ctx has ended.
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
	case <-m.refreshWakeup:
	case <-tick:
	}
	return true
}

// dueRefreshes takes the drivers that are to be asked now, and tells in how long the next one is; 0 is never.
func (m *Manager) dueRefreshes() (due []string, next time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.deps.Clock.Now()
	for name := range m.infos {
		_, asked := m.requested[name]
		period := m.deps.RefreshPeriod(name)
		left := period - now.Sub(m.lastRefresh[name])
		switch {
		case asked || period > 0 && left <= 0:
			due = append(due, name)
			m.lastRefresh[name] = now // whether it answers or not
		case period > 0 && (next == 0 || left < next):
			next = left
		}
	}
	clear(m.requested)
	return due, next
}

// refresh asks one driver, and writes its answer down if it is another than before.
func (m *Manager) refresh(ctx context.Context, name string) {
	if err := m.tryRefresh(ctx, name); err != nil && ctx.Err() == nil {
		m.deps.Logger.Warn("a csi driver did not tell its limit, its last answer stays", "driver", name, "error", err)
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
		return err // it went meanwhile, or another came, which has told its own
	}
	if err := m.write(ctx, name, info); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.infos[name] = info
	return nil
}
