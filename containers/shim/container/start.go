package container

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/containers/shim/reaper"
	"github.com/berth-dev/berth/containers/shim/seccompcache"
	"github.com/berth-dev/berth/containers/shim/stdio"
)

// Process is a process of a container that this shim has started.
type Process struct {
	// Pid is its process ID on the machine.
	Pid    int
	inner  *libcontainer.Process
	disown func()
}

// Exit is how a process ended: its exit code, or 128 and the number of the signal that ended it.
type Exit struct {
	Status int
	At     time.Time
}

// Wait waits until the process has ended, and reaps it. Call it once for each process that was started.
func (p *Process) Wait() (Exit, error) {
	if err := reaper.Ended(p.Pid); err != nil {
		return Exit{}, err
	}
	at := time.Now()
	state, err := p.inner.Wait()
	p.disown()
	if state == nil {
		return Exit{}, fmt.Errorf("reap process %d: %w", p.Pid, err)
	}
	status := state.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return Exit{Status: 128 + int(status.Signal()), At: at}, nil
	}
	return Exit{Status: status.ExitStatus(), At: at}, nil
}

// starter starts processes of a container.
type starter struct {
	container *libcontainer.Container
	orphans   *reaper.Orphans
	seccomp   string // file of the compiled profile; empty if there is none
}

// start lets runc's library start a process with the streams.
func (s starter) start(process *libcontainer.Process, terminal bool, streams *stdio.Streams) (_ *Process, master *os.File, err error) {
	if terminal {
		parent, child, err := stdio.ConsoleSocket()
		if err != nil {
			return nil, nil, err
		}
		defer parent.Close()
		defer child.Close()
		process.ConsoleSocket = child
		started, err := s.startAndOwn(process)
		if err != nil {
			return nil, nil, err
		}
		master, err = stdio.ReceiveTerminal(parent)
		return started, master, err
	}
	stdin, stdout, stderr := streams.Files()
	if stdin != nil { // a nil file in the interface would not be nil
		process.Stdin = stdin
	}
	if stdout != nil {
		process.Stdout = stdout
	}
	if stderr != nil {
		process.Stderr = stderr
	}
	started, err := s.startAndOwn(process)
	return started, nil, err
}

func (s starter) startAndOwn(process *libcontainer.Process) (*Process, error) {
	if affinity := process.CPUAffinity; affinity != nil && affinity.Initial != nil {
		defer s.orphans.Hold()()
	}
	if err := seccompcache.Use(s.seccomp, func() error { return s.container.Start(process) }); err != nil {
		return nil, err
	}
	pid, err := process.Pid()
	if err != nil {
		return nil, err
	}
	return &Process{Pid: pid, inner: process, disown: s.orphans.Own(pid)}, nil
}

// Exec starts another process in the container; spec is its process.
func (c *Container) Exec(spec *specs.Process, streams *stdio.Streams) (_ *Process, master *os.File, err error) {
	if err := validateProcess(spec); err != nil {
		return nil, nil, err
	}
	loaded, err := c.load()
	if err != nil {
		return nil, nil, err
	}
	status, err := loaded.Status()
	if err != nil {
		return nil, nil, err
	}
	if status == libcontainer.Stopped || status == libcontainer.Paused {
		return nil, nil, fmt.Errorf("the container is %s", status)
	}
	process, err := newProcess(spec)
	if err != nil {
		return nil, nil, err
	}
	return starter{loaded, c.orphans, c.seccomp}.start(process, spec.Terminal, streams)
}

// Signal sends a signal to the process.
func (p *Process) Signal(signal unix.Signal) error {
	err := p.inner.Signal(signal)
	if errors.Is(err, os.ErrProcessDone) || errors.Is(err, unix.ESRCH) {
		return libcontainer.ErrNotRunning
	}
	return err
}
