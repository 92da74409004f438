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

// fakeProvisioner is a provisioner whose answers a test sets.
type fakeProvisioner struct {
	mu           sync.Mutex
	provisionErr func(provision.VolumeOptions) error
	deleteErr    func(*corev1.PersistentVolume) error
	calls        []provision.VolumeOptions
	deletes      []string
}

func (s *fakeProvisioner) Provision(o provision.VolumeOptions) (*corev1.PersistentVolume, error) {
	s.mu.Lock()
	s.calls = append(s.calls, o)
	answer := s.provisionErr
	s.mu.Unlock()
	if answer != nil {
		if err := answer(o); err != nil {
			return nil, err
		}
	}
	return newVolume(o), nil
}

func (s *fakeProvisioner) Delete(pv *corev1.PersistentVolume) error {
	s.mu.Lock()
	s.deletes = append(s.deletes, pv.Name)
	answer := s.deleteErr
	s.mu.Unlock()
	if answer != nil {
		return answer(pv)
	}
	return nil
}

func (s *fakeProvisioner) callCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

func (s *fakeProvisioner) deleted() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.deletes)
}

func (s *fakeProvisioner) setProvisionErr(f func(provision.VolumeOptions) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.provisionErr = f
}

// fixture is a controller in a world of its own, inside a synctest bubble.
type fixture struct {
	*testing.T
	api    *fakeAPI
	events *record.FakeRecorder
	ctrl   *provision.ProvisionController
	stop   func()
}

func run(t *testing.T, api *fakeAPI, p provision.Provisioner, options ...option) *fixture {
	t.Helper()
	return runWithProcess(t, api, nil, p, options...)
}

// runWithProcess is run with a client that passes through the process.
func runWithProcess(t *testing.T, api *fakeAPI, process *process, p provision.Provisioner, options ...option) *fixture {
	t.Helper()
	s := &fixture{T: t, api: api, events: record.NewFakeRecorder(5000)}
	options = append([]option{provision.LeaderElection(false), provision.EventRecorder(s.events)}, options...)
	ctrl, err := provision.New(api.client(process), driverName, p, options...)
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

// advance lets the bubble's time pass and everything that follows from it happen.
func (s *fixture) advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (s *fixture) drainEvents() []string {
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

func runSynctest(name string, t *testing.T, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func (api *fakeAPI) writeCount(what string) int {
	api.mu.Lock()
	defer api.mu.Unlock()
	return api.writes[what]
}
