// Package supervisor starts components in order, detects when one ends by itself, and
// stops the others in reverse order.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/controlplane/contain"
	"github.com/berth-dev/berth/controlplane/statuspipe"
)

// Component is what the supervisor runs.
type Component struct {
	// Name identifies it in events and errors.
	Name string
	// Run works until ctx ends and calls ready once, from any goroutine, when
	// the next components may start. Returning nil before ctx ends is a failure unless
	// OneShot is set.
	Run func(ctx context.Context, ready func()) error
	// OneShot is set if the component is complete when Run returns nil.
	OneShot bool
}

// Reporter records the state that each component reaches.
type Reporter interface {
	Report(component string, state statuspipe.State, cause error) error
}

// Deps are the dependencies of a Supervisor. Without a Clock it uses the real one.
type Deps struct {
	Reporter Reporter
	Clock    clock.Clock
}

// Config configures a Supervisor.
type Config struct {
	// Phases are started one after the other, the components of a phase together.
	Phases [][]Component
	// StopTimeout is how long all phases together may take to stop. What still
	// runs then is abandoned and named in the error: the caller must exit.
	StopTimeout time.Duration
}

// Supervisor runs components. Use it once.
type Supervisor struct {
	deps   Deps
	config Config
	exits  chan exit // of all members; its buffer holds them all
}

type exit struct {
	member *member
	err    error
}

// member is a started component.
type member struct {
	component Component
	cancel    context.CancelFunc
	ready     chan struct{} // closed by ready
	done      chan struct{} // closed when Run has returned
}

// New returns a Supervisor that Run starts. Deps.Reporter is required.
func New(deps Deps, config Config) (*Supervisor, error) {
	if deps.Reporter == nil {
		return nil, errors.New("supervisor: Deps.Reporter is required")
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	count := 0
	for _, phase := range config.Phases {
		count += len(phase)
	}
	return &Supervisor{deps: deps, config: config, exits: make(chan exit, count)}, nil
}

// Run starts all phases, calls ready when all are, and works until ctx ends or a
// member fails. It stops what it started and returns nil, or the reason why it
// had to stop, which names the member.
func (s *Supervisor) Run(ctx context.Context, ready func()) error {
	var started []*member
	cause := s.start(ctx, &started)
	if cause == nil && ctx.Err() == nil {
		ready()
		cause = s.waitExit(ctx)
	}
	return errors.Join(cause, s.stop(started))
}

func (s *Supervisor) start(ctx context.Context, started *[]*member) error {
	for _, phase := range s.config.Phases {
		first := len(*started)
		for _, component := range phase {
			*started = append(*started, s.startMember(ctx, component))
		}
		for _, m := range (*started)[first:] {
			if err := s.waitReady(ctx, m); err != nil || ctx.Err() != nil {
				return err
			}
		}
	}
	return nil
}

// startMember gives the member a context that ctx's end does not end: members stop in
// order, not all at once.
func (s *Supervisor) startMember(ctx context.Context, component Component) *member {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	m := &member{component: component, cancel: cancel, ready: make(chan struct{}), done: make(chan struct{})}
	s.report(component.Name, statuspipe.Starting, nil)
	var once sync.Once
	ready := func() {
		once.Do(func() {
			s.report(component.Name, statuspipe.Ready, nil)
			close(m.ready)
		})
	}
	go func() {
		err := contain.Do("component "+component.Name, func() error { return component.Run(own, ready) })
		if err == nil && component.OneShot {
			ready()
			close(m.done)
			return
		}
		if err == nil && own.Err() == nil {
			err = errors.New("ended by itself")
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", component.Name, err)
		}
		s.exits <- exit{m, err}
		close(m.done)
	}()
	return m
}

func (s *Supervisor) waitReady(ctx context.Context, m *member) error {
	select {
	case <-m.ready:
		return nil
	case end := <-s.exits:
		return s.reportFailure(end)
	case <-ctx.Done():
		return nil
	}
}

func (s *Supervisor) waitExit(ctx context.Context) error {
	select {
	case end := <-s.exits:
		return s.reportFailure(end)
	case <-ctx.Done():
		return nil
	}
}

func (s *Supervisor) reportFailure(end exit) error {
	s.report(end.member.component.Name, statuspipe.Failed, end.err)
	return end.err
}

// stop ends the members in the reverse order of their start.
func (s *Supervisor) stop(started []*member) error {
	timeout := s.deps.Clock.NewTimer(s.config.StopTimeout)
	defer timeout.Stop()
	for i := len(started) - 1; i >= 0; i-- {
		m := started[i]
		m.cancel()
		select {
		case <-m.done:
			if !m.component.OneShot {
				s.report(m.component.Name, statuspipe.Stopped, nil)
			}
		case <-timeout.C():
			return fmt.Errorf("%s did not stop within %s", m.component.Name, s.config.StopTimeout)
		}
	}
	return nil
}

func (s *Supervisor) report(name string, state statuspipe.State, cause error) {
	// The cluster goes on without a reader of the reports.
	_ = s.deps.Reporter.Report(name, state, cause)
}
