package agent

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	podconfig "github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/lifecycle"
)

// blockingHandler is an admission handler that blocks until it is released.
type blockingHandler struct{ called, release chan struct{} }

// Admit implements lifecycle.PodAdmitHandler.
func (h blockingHandler) Admit(*lifecycle.PodAdmitAttributes) lifecycle.PodAdmitResult {
	close(h.called)
	<-h.release
	return lifecycle.PodAdmitResult{Admit: true}
}

// TestHealthFindsWhatHangs blocks the handling of Pods: the agent is unhealthy until it goes on.
func TestHealthFindsWhatHangs(t *testing.T) {
	handler := blockingHandler{make(chan struct{}), make(chan struct{})}
	f := newFixture(t, func(d *Deps, _ *Config) { d.AdmitHandlers = []lifecycle.PodAdmitHandler{handler} })
	require.NoError(t, f.agent.Healthy(t.Context()))
	<-f.agent.Serving()
	added := make(chan struct{})
	go func() {
		defer close(added)
		f.agent.HandlePod(podconfig.Change{Op: podconfig.Add, Pod: &corev1.Pod{}})
	}()
	<-handler.called
	result := make(chan error, 1)
	go func() { result <- f.agent.Healthy(t.Context()) }()
	var err error
	require.Eventually(t, func() bool {
		f.clock.Step(15 * time.Second)
		select {
		case err = <-result:
			if err != nil && !strings.Contains(err.Error(), "syncloop") {
				go func() { result <- f.agent.Healthy(t.Context()) }() // the clock was too fast for a component to respond
				return false
			}
			return true
		default:
			return false
		}
	}, time.Minute, time.Millisecond)
	require.ErrorContains(t, err, "health check syncloop: no response since")
	f.clock.Step(30 * time.Second)
	require.Error(t, f.agent.Healthy(t.Context()), "a later check need not wait again")
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, f.agent.Healthy(cancelled))
	handler.release <- struct{}{}
	<-added
	require.Eventually(t, func() bool { return f.agent.Healthy(t.Context()) == nil }, time.Minute, time.Millisecond)
}
