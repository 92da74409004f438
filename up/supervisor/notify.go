package supervisor

import (
	"sync"

	"github.com/coreos/go-systemd/v22/daemon"
)

// notify sends a state to the service manager, if one has started this process.
func (s *Supervisor) notify(state string) {
	if s.deps.Notify == nil {
		return
	}
	if err := s.deps.Notify(state); err != nil {
		s.deps.Logger.Warn("failed to notify the service manager", "state", state, "error", err)
	}
}

// feedWatchdog shows the service manager that the supervisor works, as often as it wants, until the returned function is called. What
// hangs among the programs is not its concern: the supervisor kills that itself.
func (s *Supervisor) feedWatchdog() (stop func()) {
	if s.deps.Watchdog == 0 {
		return func() {}
	}
	done := make(chan struct{})
	var feeding sync.WaitGroup
	feeding.Go(func() {
		ticker := s.deps.Clock.NewTicker(s.deps.Watchdog / 2)
		defer ticker.Stop()
		for {
			// Every request, exit and stop takes this lock: a supervisor that is stuck holds it.
			s.mu.Lock()
			s.mu.Unlock() //nolint:staticcheck // see above
			s.notify(daemon.SdNotifyWatchdog)
			select {
			case <-done:
				return
			case <-ticker.C():
			}
		}
	})
	return func() { close(done); feeding.Wait() }
}
