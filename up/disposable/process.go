package disposable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/berth-dev/berth/internal/contain"
)

// readyText is what `berth up` prints once the Node is ready and names resolve.
const readyText = "is ready after"

// process is a running `berth up`.
type process struct {
	cmd   *exec.Cmd
	out   *lines
	ended chan struct{} // closed when the process has ended
	err   error         // of the end; read it after ended
}

// startProcess starts the program. If this process dies, the kernel kills it, and with it all of its cluster.
func startProcess(program string, args []string, onLine func(string)) (*process, error) {
	p := &process{out: &lines{onLine: onLine, ready: make(chan struct{})}, ended: make(chan struct{})}
	p.cmd = exec.Command(program, args...)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go contain.Guard("disposable.process", program, func() {
		// The parent-death signal follows the thread that forked, which must live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = p.cmd.Wait()
		close(p.ended)
	})()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	return p, nil
}

// waitReady returns once the cluster is ready.
func (p *process) waitReady(ctx context.Context) error {
	select {
	case <-p.out.ready:
		return nil
	case <-p.ended:
		return fmt.Errorf("berth up ended (%v) before the cluster was ready:\n%s", p.err, p.out)
	case <-ctx.Done():
		return fmt.Errorf("wait for the cluster: %w; it printed:\n%s", ctx.Err(), p.out)
	}
}

// errKilled is the error of a cluster that had to be killed.
var errKilled = errors.New("berth up did not stop in time and was killed")

// stop ends the cluster in order. After timeout it is killed, and the error is errKilled.
func (p *process) stop(timeout time.Duration) error {
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop berth up: %w", err)
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-p.ended:
	case <-timer.C:
		if p.hasEnded() {
			break
		}
		_ = p.cmd.Process.Kill() // it may have ended just now
		<-p.ended
		return fmt.Errorf("%w, after %v; it printed:\n%s", errKilled, timeout, p.out)
	}
	if p.err != nil {
		return fmt.Errorf("berth up ended with %w; it printed:\n%s", p.err, p.out)
	}
	return nil
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// lines keeps what a process prints and notices when it is ready. It is safe for concurrent use.
type lines struct {
	onLine func(string)
	ready  chan struct{}

	mu      sync.Mutex // guards the rest
	text    bytes.Buffer
	scanned int
	isReady bool
}

// Write implements io.Writer.
func (l *lines) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(data)
	for {
		end := bytes.IndexByte(l.text.Bytes()[l.scanned:], '\n')
		if end < 0 {
			return len(data), nil
		}
		line := string(l.text.Bytes()[l.scanned : l.scanned+end])
		l.scanned += end + 1
		l.onLine(line)
		if strings.Contains(line, readyText) && !l.isReady {
			l.isReady = true
			close(l.ready)
		}
	}
}

// String returns all that was printed.
func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
