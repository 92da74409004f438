package node

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Startup is when a new Node came into being: when its creation was first attempted, when it was created, and when it was ready, zero if it is
// not yet.
type Startup struct{ Attempted, Registered, Ready time.Time }

// startup reports the Startup of a Node that is created here.
type startup struct {
	Startup
	report func(Startup) // nil if it is wanted nowhere
}

func (s *startup) attempted(now time.Time) {
	if s.Attempted.IsZero() {
		s.Attempted = now
	}
}

// registered is called when the Node was created with that status.
func (s *startup) registered(status *corev1.NodeStatus, now time.Time) {
	s.Registered = now
	if s.report != nil {
		s.report(s.Startup)
	}
	s.written(status, now)
}

// written is called when a status was written.
func (s *startup) written(status *corev1.NodeStatus, now time.Time) {
	if s.Registered.IsZero() || !s.Ready.IsZero() {
		return
	}
	ready := findCondition(status.Conditions, corev1.NodeReady)
	if ready == nil || ready.Status != corev1.ConditionTrue {
		return
	}
	s.Ready = now
	if s.report != nil {
		s.report(s.Startup)
	}
}
