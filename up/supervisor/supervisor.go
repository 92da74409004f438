package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"k8s.io/utils/clock"
)

// ProgramName is the file name of the supervisor's program.
const ProgramName = "berth-supervisor"

const (
	// maxExitsBeforeStart is how often the node's process may exit before it has started the node: a user is waiting, and the
	// cause is usually permanent. After that it is started again for as long as the cluster runs.
	maxExitsBeforeStart = 3
	// nodeStopTimeout bounds how long the node's process may take to stop the node with its Pods.
	nodeStopTimeout = 3 * time.Minute
)

// Plan is what the supervisor has to run. It is handed over as a file without a name, because Config may have secrets.
type Plan struct {
	// Programs are started at once, and again whenever they end.
	Programs []Program `json:"programs,omitempty"`
	// Node is the node's process, which gets Config over its socket.
	Node   Program         `json:"node"`
	Config json.RawMessage `json:"config"`
	// Files are the inherited descriptors, which stay open; those of Release are closed before the cleanup.
	Files   []int `json:"files,omitempty"`
	Release []int `json:"release,omitempty"`
	// Log is the supervisor's own log.
	Log string `json:"log"`
	// Clean is set if no earlier run has left anything: then a failed start removes all that it has made.
	Clean bool `json:"clean,omitempty"`
	// Stopped is what to print when all programs have ended.
	Stopped string `json:"stopped"`
}

// Display shows how components start, and messages.
type Display interface {
	Starting(name string)
	Ready(name, detail string)
	Failed(name string, err error)
	Printf(format string, args ...any)
}

// Deps are the dependencies of a Supervisor. Display, Logger and Clock are required.
type Deps struct {
	Display Display
	Logger  *slog.Logger
	Clock   clock.WithTicker
	// Notify sends a state to the service manager (sd_notify(3)) that has started this process; nil if none has.
	Notify func(state string) error
	// Watchdog is how long the service manager waits for a sign of life; 0 if it wants none.
	Watchdog time.Duration
}

// Supervisor runs a Plan.
type Supervisor struct {
	plan  Plan
	deps  Deps
	files map[int]*os.File
	// done gets the error with which the node ended, or nil.
	done chan error
	// endAgain keeps the node's process from being started again.
	endAgain context.CancelFunc

	mu       sync.Mutex // guards all below
	programs []*supervised
	link     *link // to the node's process that runs, or ran last
	started  bool  // the node can run Pods
	up       bool  // what the user has started was ready
	stopping bool  // the node's process is to stop the node
	keep     bool  // the Pods run on
	// unseen are the exits, by the program's name, that the node's process has not received yet.
	unseen map[string]string
}

// supervised is a program that runs, or waits to be started again.
type supervised struct {
	Program
	cancel context.CancelFunc
	ended  chan struct{}
	alive  bool     // guarded by Supervisor.mu
	lines  []string // that it has written; guarded by Supervisor.mu
}

// New returns a Supervisor that does nothing before Run.
func New(deps Deps, plan Plan) (*Supervisor, error) {
	if deps.Display == nil || deps.Logger == nil || deps.Clock == nil {
		return nil, errors.New("supervisor: Deps.Display, Logger and Clock are required")
	}
	s := &Supervisor{plan: plan, deps: deps, files: make(map[int]*os.File), done: make(chan error, 1), unseen: make(map[string]string)}
	for _, fd := range plan.Files {
		s.files[fd] = os.NewFile(uintptr(fd), fmt.Sprintf("inherited descriptor %d", fd))
	}
	return s, nil
}

// Run runs the cluster until ctx is done or the node has failed, stops it in order, and removes what it has left.
func (s *Supervisor) Run(ctx context.Context) error {
	for _, program := range s.plan.Programs {
		s.start(program, true)
	}
	nodeCtx, endNode := context.WithCancel(context.Background())
	defer endNode()
	again, endAgain := context.WithCancel(nodeCtx)
	s.endAgain = endAgain
	nodeEnded := make(chan struct{})
	go func() {
		defer close(nodeEnded)
		s.runNode(nodeCtx, again)
	}()
	stopFeeding := s.feedWatchdog()
	defer stopFeeding()
	var err error
	select {
	case <-ctx.Done():
		s.notify(daemon.SdNotifyStopping)
		s.stopNode()
	case err = <-s.done:
	case <-nodeEnded:
	}
	timer := s.deps.Clock.NewTimer(nodeStopTimeout)
	select {
	case <-nodeEnded:
		timer.Stop()
	case <-timer.C():
		s.report(fmt.Sprintf("%s does not stop: it is stopped without its Pods", s.plan.Node.Name))
		endNode()
		<-nodeEnded
	}
	select {
	case err = <-s.done: // the errors of the stop
	default:
	}
	s.stopAll()
	s.deps.Display.Printf("%s", s.plan.Stopped)
	s.mu.Lock()
	keep := s.keep || err != nil && !s.started && !s.plan.Clean
	s.mu.Unlock()
	if keep {
		return err // Pods, in the second case of an earlier run, may still run; the next start takes them over
	}
	return errors.Join(err, s.cleanup())
}

// report shows what happened to a program, and logs it.
func (s *Supervisor) report(text string) {
	s.deps.Display.Printf("%s  %s", s.deps.Clock.Now().Format(time.TimeOnly), text)
	s.deps.Logger.Warn(text)
}

// start starts a program. If keep is set it is started again whenever it ends, until it is stopped.
func (s *Supervisor) start(p Program, keep bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.find(p.Name) != nil {
		s.send(Event{Program: p.Name, Error: p.Name + " runs already"})
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	program := &supervised{Program: p, cancel: cancel, ended: make(chan struct{}), alive: true}
	s.programs = append(s.programs, program)
	go func() {
		defer close(program.ended)
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.remove(program)
		}()
		run := func() error { return s.runOnce(ctx, program, keep) }
		Restart(ctx, s.deps.Clock, run, func(err error, delay time.Duration) bool {
			if keep {
				s.report(fmt.Sprintf("%s exited: %v; restarting it in %v", p.Name, err, delay))
			}
			return keep
		})
	}()
}

// logHealthy returns a function that logs that the program responds, and so is watched from now on.
func (s *Supervisor) logHealthy(program string) func() {
	return func() { s.deps.Logger.Info("program responds", "program", program) }
}

// runOnce runs a program until it exits, and sends its lines and its exit to the node, which may start it again then unless the
// supervisor keeps it.
func (s *Supervisor) runOnce(ctx context.Context, program *supervised, keep bool) error {
	with := running{clock: s.deps.Clock, onHealthy: s.logHealthy(program.Name)}
	for _, fd := range program.Files {
		with.files = append(with.files, s.files[fd])
	}
	s.mu.Lock()
	program.alive, program.lines = true, nil
	s.mu.Unlock()
	if program.Lines {
		with.onLine = func(line string) { s.onLine(program, line) }
	}
	err := program.run(ctx, with)
	event := Event{Program: program.Name}
	if err != nil {
		event.Error = err.Error()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	program.alive = false
	if !keep {
		s.remove(program)
		if event.Error != "" {
			s.unseen[program.Name] = event.Error
		}
	}
	s.send(event)
	if s.link == nil {
		s.reportUnseen()
	}
	return err
}

// reportUnseen reports the exits that no node's process has reported. The caller holds mu.
func (s *Supervisor) reportUnseen() {
	for name, text := range s.unseen {
		s.report(fmt.Sprintf("%s exited: %s", name, text))
	}
	clear(s.unseen)
}

// maxLines is how many of a program's lines are kept for a node's process that is started later.
const maxLines = 200

func (s *Supervisor) onLine(program *supervised, line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if program.lines = append(program.lines, line); len(program.lines) > maxLines {
		program.lines = program.lines[1:]
	}
	s.send(Event{Program: program.Name, Line: &line})
}

// programNamed returns a program that runs, nil if it does not.
func (s *Supervisor) programNamed(name string) *supervised {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.find(name)
}

// find returns a program that runs. The caller holds mu.
func (s *Supervisor) find(name string) *supervised {
	for _, program := range s.programs {
		if program.Name == name {
			return program
		}
	}
	return nil
}

// remove removes a program that has ended for good. The caller holds mu.
func (s *Supervisor) remove(program *supervised) {
	s.programs = slices.DeleteFunc(s.programs, func(other *supervised) bool { return other == program })
}

// send sends an event to the node's process, if that runs. The caller holds mu.
func (s *Supervisor) send(event Event) {
	if s.link != nil {
		s.link.send(event)
	}
}

// stopAll stops all programs that still run, the one that was started last first.
func (s *Supervisor) stopAll() {
	for {
		s.mu.Lock()
		var last *supervised
		if len(s.programs) > 0 {
			last = s.programs[len(s.programs)-1]
		}
		s.mu.Unlock()
		if last == nil {
			return
		}
		last.cancel()
		<-last.ended
	}
}
