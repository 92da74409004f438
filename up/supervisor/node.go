package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// runNode runs the node's process until it has done its task, or ctx is done. It is not started again once again is done.
func (s *Supervisor) runNode(ctx, again context.Context) {
	restarts := 0
	run := func() error {
		err := s.runNodeOnce(ctx, TaskRun, restarts)
		restarts++
		return err
	}
	Restart(again, s.deps.Clock, run, func(err error, delay time.Duration) bool {
		s.mu.Lock()
		started := s.started
		s.mu.Unlock()
		if !started && restarts >= maxExitsBeforeStart {
			s.finish(err)
			return false
		}
		s.report(fmt.Sprintf("%s exited: %v; restarting it in %v", s.plan.Node.Name, err, delay))
		return true
	})
}

// finish records that the node has ended its task, with an error if it failed: it is not started again.
func (s *Supervisor) finish(err error) {
	s.endAgain()
	select {
	case s.done <- err:
	default: // the first error counts
	}
}

// runNodeOnce starts the node's process and serves its requests until it exits.
func (s *Supervisor) runNodeOnce(ctx context.Context, task Task, restarts int) error {
	ours, theirs, err := socketPair()
	if err != nil {
		return err
	}
	link := s.openLink(ours, task, restarts)
	program, files := s.plan.Node, []*os.File{theirs}
	if task == TaskCleanup {
		program.PIDFile, program.Health, program.Files = "", nil, nil
	}
	for _, fd := range program.Files {
		files = append(files, s.files[fd])
	}
	err = program.run(ctx, running{clock: s.deps.Clock, files: files, onHealthy: s.logHealthy(program.Name)})
	s.mu.Lock()
	s.link = nil
	s.mu.Unlock()
	err = errors.Join(err, theirs.Close(), link.close()) // all its requests are handled now
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reportUnseen()
	return err
}

// openLink sends the node's process its task and the programs that run.
func (s *Supervisor) openLink(file *os.File, task Task, restarts int) *link {
	s.mu.Lock()
	defer s.mu.Unlock()
	hello := Hello{Task: task, Config: s.plan.Config, Restarts: restarts, Up: s.up, Running: make(map[string][]string)}
	for _, program := range s.programs {
		if program.alive {
			hello.Running[program.Name] = slices.Clone(program.lines)
		}
	}
	s.link = newLink(file, hello, s.handle)
	if task == TaskRun && s.stopping {
		s.link.send(Event{Stop: true})
	}
	return s.link
}

// socketPair returns both ends of a socket, which programs do not inherit by accident.
func socketPair() (ours, theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket to the node's process: %w", err)
	}
	return os.NewFile(uintptr(pair[0]), "link"), os.NewFile(uintptr(pair[1]), "link"), nil
}

// handle does what the node's process requests.
func (s *Supervisor) handle(request Request) {
	display := s.deps.Display
	switch request.Kind {
	case KindStart:
		if request.Program != nil && len(request.Program.Argv) > 0 {
			s.start(*request.Program, false)
		}
	case KindStop:
		if program := s.programNamed(request.Name); program != nil {
			program.cancel()
		}
	case KindSeen:
		s.mu.Lock()
		delete(s.unseen, request.Name)
		s.mu.Unlock()
	case KindStarting:
		display.Starting(request.Name)
	case KindReady:
		display.Ready(request.Name, request.Text)
	case KindFailed:
		display.Failed(request.Name, errors.New(request.Text))
	case KindPrint:
		display.Printf("%s", request.Text)
	case KindStarted:
		s.mu.Lock()
		s.started = true
		s.mu.Unlock()
	case KindUp:
		s.mu.Lock()
		s.up = true
		s.mu.Unlock()
		s.notify(daemon.SdNotifyReady + "\nSTATUS=" + request.Text)
	case KindDone:
		var err error
		if request.Text != "" {
			err = errors.New(request.Text)
		}
		s.mu.Lock()
		s.keep = request.Keep
		s.mu.Unlock()
		s.finish(err)
	}
}

// stopNode asks the node's process to stop the node with its Pods.
func (s *Supervisor) stopNode() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = true
	s.endAgain()
	s.send(Event{Stop: true})
}

// cleanup removes what the cluster's processes have left.
func (s *Supervisor) cleanup() error {
	for _, fd := range s.plan.Release {
		if file := s.files[fd]; file != nil {
			_ = file.Close() // a lock, which is released by that
		}
	}
	err := s.runNodeOnce(context.Background(), TaskCleanup, 0)
	select {
	case err = <-s.done:
		return err
	default:
		return fmt.Errorf("clean up after stopping: %w", err)
	}
}
