package userns

import (
	"context"
	"log/slog"
)

// NewWithProc returns a Manager that reads another directory than /proc.
func NewWithProc(podsDir, proc string) *Manager {
	m := New(podsDir, 0, slog.New(slog.DiscardHandler))
	m.procDir = proc
	return m
}

// SetSubids replaces what the system says of the ids of the user kubelet.
func (m *Manager) SetSubids(lookUser func(name string) error, run func(ctx context.Context, args ...string) (string, error)) {
	m.subids = subids{lookUser: lookUser, run: run}
}
