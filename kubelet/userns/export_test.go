package userns

import "log/slog"

// NewWithProc returns a Manager that reads another directory than /proc.
func NewWithProc(podsDir, proc string) *Manager {
	m := New(podsDir, 0, slog.New(slog.DiscardHandler))
	m.procDir = proc
	return m
}
