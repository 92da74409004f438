package supervisor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/pidfile"
)

// StopTimeout is how long a program may take to stop before it is killed, if its StopTimeout is zero.
const StopTimeout = 20 * time.Second

// Program is a child process of the cluster.
type Program struct {
	Name string `json:"name"`
	// Path is the file to execute; Argv[0] if empty.
	Path string   `json:"path,omitempty"`
	Argv []string `json:"argv"`
	// Env is its whole environment.
	Env []string `json:"env,omitempty"`
	// Files are descriptors of the supervisor, which the program inherits as those from 3 on.
	Files []int `json:"files,omitempty"`
	// Log gets standard error, and standard output unless Lines is set: then its lines are passed to the node's process.
	Log   string `json:"log"`
	Lines bool   `json:"lines,omitempty"`
	// PIDFile identifies the running process, so that the next start can stop it if the supervisor was killed; empty for none.
	PIDFile string `json:"pidFile"`
	// StopSignal stops the program; SIGTERM if zero. DeathSignal is sent when the supervisor dies; StopSignal if zero.
	StopSignal  syscall.Signal `json:"stopSignal,omitempty"`
	DeathSignal syscall.Signal `json:"deathSignal,omitempty"`
	// StopTimeout is how long it may take to stop; the constant StopTimeout if zero.
	StopTimeout time.Duration `json:"stopTimeout,omitempty"`
	// Health says how to find out that the program hangs; nil for not at all.
	Health *Health `json:"health,omitempty"`
}

// running is what a program needs of the process that runs it.
type running struct {
	clock clock.WithTicker
	files []*os.File
	// onLine gets every line of standard output, from one goroutine; nil unless Lines is set.
	onLine func(line string)
	// onHealthy is called at the first reply of the program's Health; it may be nil.
	onHealthy func()
}

// Run starts the program and waits until it exits. When ctx is done it sends the stop signal, and SIGKILL after the stop
// timeout. If this process dies, the kernel sends the death signal. Files and Lines have no effect.
func (p Program) Run(ctx context.Context) error { return p.run(ctx, running{clock: clock.RealClock{}}) }

func (p Program) run(ctx context.Context, with running) error {
	logFile, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", p.Name, err)
	}
	defer logFile.Close()

	// The parent-death signal follows the thread that forked, so this thread must live as long as the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	cmd := p.command(ctx, logFile, with)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	if err := p.record(cmd.Process.Pid); err != nil {
		return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	hang, endWatch := p.watch(ctx, with, cmd.Process)
	err = cmd.Wait()
	endWatch()
	if removeErr := p.forget(); removeErr != nil {
		return errors.Join(err, removeErr)
	}
	if ctx.Err() != nil {
		return nil // it was stopped
	}
	if cause := hang.Load(); cause != nil {
		return fmt.Errorf("%s hung and was killed: %w (see %s)", p.Name, *cause, p.Log)
	}
	if err == nil {
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("%s exited unexpectedly (%w): %s", p.Name, err, lastLine(p.Log))
}

// record writes the file of PIDFile, and forget removes it.
func (p Program) record(pid int) error {
	if p.PIDFile == "" {
		return nil
	}
	return pidfile.Write(p.PIDFile, pid)
}

func (p Program) forget() error {
	if p.PIDFile == "" {
		return nil
	}
	if err := os.Remove(p.PIDFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (p Program) command(ctx context.Context, logFile *os.File, with running) *exec.Cmd {
	cmd := exec.CommandContext(ctx, cmp.Or(p.Path, p.Argv[0]))
	cmd.Args, cmd.Env, cmd.ExtraFiles = p.Argv, p.Env, with.files
	cmd.Stderr, cmd.Stdout = logFile, logFile
	if with.onLine != nil {
		cmd.Stdout = &lineWriter{onLine: with.onLine}
	}
	// A process group of its own, so that Ctrl-C on the terminal reaches only the supervisor, which then stops all in order.
	end := cmp.Or(p.StopSignal, syscall.SIGTERM)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: cmp.Or(p.DeathSignal, end)}
	cmd.Cancel = func() error { return cmd.Process.Signal(end) }
	cmd.WaitDelay = cmp.Or(p.StopTimeout, StopTimeout)
	return cmd
}

// watch kills the process when it hangs, until end is called. hang is why; nil if it was not killed.
func (p Program) watch(ctx context.Context, with running, process *os.Process) (hang *atomic.Pointer[error], end func()) {
	hang = new(atomic.Pointer[error])
	if p.Health == nil {
		return hang, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		responds := with.onHealthy
		if responds == nil {
			responds = func() {}
		}
		if err := p.Health.watch(ctx, with.clock, responds); err != nil {
			hang.Store(&err)
			_ = process.Kill() // it has ended
		}
	}()
	return hang, func() { cancel(); <-ended }
}

// lineWriter splits its input into lines. It keeps at most maxLine bytes of an unfinished one.
type lineWriter struct {
	onLine func(line string)
	rest   []byte
}

const maxLine = 1 << 20

func (w *lineWriter) Write(data []byte) (int, error) {
	w.rest = append(w.rest, data...)
	for {
		end := bytes.IndexByte(w.rest, '\n')
		if end < 0 {
			if len(w.rest) > maxLine {
				w.rest = nil
			}
			return len(data), nil
		}
		w.onLine(string(w.rest[:end]))
		w.rest = w.rest[end+1:]
	}
}
