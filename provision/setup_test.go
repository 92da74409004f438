package provision_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/provision"
)

// simple is a provisioner whose answers a test sets.
type simple struct {
	mu      sync.Mutex
	answer  func(provision.VolumeOptions) error
	delete  func(*corev1.PersistentVolume) error
	calls   []provision.VolumeOptions
	deletes []string
}

func (s *simple) Provision(o provision.VolumeOptions) (*corev1.PersistentVolume, error) {
	s.mu.Lock()
	s.calls = append(s.calls, o)
	answer := s.answer
	s.mu.Unlock()
	if answer != nil {
		if err := answer(o); err != nil {
			return nil, err
		}
	}
	return volumeOf(o), nil
}

func (s *simple) Delete(pv *corev1.PersistentVolume) error {
	s.mu.Lock()
	s.deletes = append(s.deletes, pv.Name)
	answer := s.delete
	s.mu.Unlock()
	if answer != nil {
		return answer(pv)
	}
	return nil
}

func (s *simple) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

func (s *simple) deleted() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.deletes)
}

func (s *simple) answers(f func(provision.VolumeOptions) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = f
}

// setup is a controller in a world of its own, inside a synctest bubble.
type setup struct {
	*testing.T
	world  *world
	events *record.FakeRecorder
	ctrl   *provision.ProvisionController
	stop   func()
}

func run(t *testing.T, w *world, p provision.Provisioner, options ...option) *setup {
	t.Helper()
	return runIn(t, w, nil, p, options...)
}

// runIn is run with a client that passes through the process.
func runIn(t *testing.T, w *world, process *process, p provision.Provisioner, options ...option) *setup {
	t.Helper()
	s := &setup{T: t, world: w, events: record.NewFakeRecorder(5000)}
	options = append([]option{provision.LeaderElection(false), provision.EventRecorder(s.events)}, options...)
	ctrl, err := provision.New(w.client(process), driver, p, options...)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- ctrl.RunContext(ctx) }()
	s.ctrl = ctrl
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(s.stop)
	synctest.Wait()
	return s
}

// after lets the bubble's time pass and everything that follows from it happen.
func (s *setup) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (s *setup) eventsSoFar() []string {
	var texts []string
	for {
		select {
		case e := <-s.events.Events:
			texts = append(texts, e)
		default:
			return texts
		}
	}
}

func bubble(name string, t *testing.T, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func (w *world) written(what string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.writes[what]
}
