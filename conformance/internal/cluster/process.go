package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// process is a berth that runs until it is stopped.
type process struct {
	what    string
	logPath string
	timeout time.Duration
	cmd     *exec.Cmd
	log     *os.File
	ended   chan struct{}
	// err is how the process ended; read it after ended is closed.
	err error
}

// startProcess starts a program and returns once it has printed readyText. ctx bounds the start alone: what has started
// runs until the caller calls Stop.
func startProcess(ctx context.Context, what, logPath string, timeout time.Duration, argv ...string) (*process, error) {
	log, err := os.Create(logPath)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", what, err)
	}
	p := &process{what: what, logPath: logPath, timeout: timeout, log: log, ended: make(chan struct{})}
	p.cmd = exec.Command(argv[0], argv[1:]...)
	// Neither Ctrl-C at the terminal nor the end of ctx stops the process: the suite ends first, and then Stop stops it. If this
	// program is killed, the kernel stops it; the signal is that of the thread's end, so main locks its thread.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
	ready := newTextWaiter(readyText)
	output := io.MultiWriter(log, ready)
	p.cmd.Stdout, p.cmd.Stderr = output, output
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", what, err), log.Close())
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-ready.seen:
		return p, nil
	case <-p.ended:
		err := fmt.Errorf("start %s: berth ended before it was ready, see %s: %w", what, logPath, p.err)
		return nil, errors.Join(err, log.Close())
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("start %s: %w", what, context.Cause(ctx)), p.Stop())
	case <-timer.C:
		return nil, errors.Join(fmt.Errorf("start %s: not ready after %s, see %s", what, timeout, logPath), p.Stop())
	}
}

// Ended is closed when the process has ended, stopped or not.
func (p *process) Ended() <-chan struct{} { return p.ended }

// Stop stops berth and waits for it, and kills it if that takes too long.
func (p *process) Stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGINT) // it may have ended, which is handled below
	timer := time.NewTimer(p.timeout)
	defer timer.Stop()
	select {
	case <-p.ended:
		if p.err != nil {
			return errors.Join(fmt.Errorf("stop %s: berth failed, see %s: %w", p.what, p.logPath, p.err), p.log.Close())
		}
		return p.log.Close()
	case <-timer.C:
		killed := p.cmd.Process.Kill()
		<-p.ended
		err := fmt.Errorf("stop %s: still running after %s, killed, see %s", p.what, p.timeout, p.logPath)
		return errors.Join(err, killed, p.log.Close())
	}
}

// textWaiter is a writer that detects when a text has been written.
type textWaiter struct {
	text []byte
	seen chan struct{}
	once sync.Once

	mu   sync.Mutex
	tail []byte
}

func newTextWaiter(words string) *textWaiter {
	return &textWaiter{text: []byte(words), seen: make(chan struct{})}
}

// Write keeps only as much as could be the beginning of the text.
func (w *textWaiter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tail = append(w.tail, p...)
	if bytes.Contains(w.tail, w.text) {
		w.once.Do(func() { close(w.seen) })
	}
	if keep := len(w.text); len(w.tail) > keep {
		w.tail = append(w.tail[:0], w.tail[len(w.tail)-keep:]...)
	}
	return len(p), nil
}
