package podworker

// SetNetwork is Signals.SetNetwork.
func (m *Manager) SetNetwork(missing error) { m.deps.Signals.SetNetwork(missing) }
