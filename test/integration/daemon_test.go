//go:build integration

package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// daemon is a component of berth as a process of its own. It is started again whenever it ends, as by an init system.
type daemon struct {
	name  string
	log   *os.File
	argv  []string
	ended chan struct{} // closed when stop has ended it

	mu      sync.Mutex // guards all below
	process *os.Process
	stopped bool
	kills   int
}

// startDaemon starts a daemon, which the end of the test stops.
func startDaemon(t testing.TB, name, logDir string, argv ...string) *daemon {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(logDir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	d := &daemon{name: name, log: log, argv: argv, ended: make(chan struct{})}
	go d.live()
	t.Cleanup(d.stop)
	return d
}

func (d *daemon) live() {
	defer close(d.ended)
	defer d.log.Close()
	for {
		cmd := exec.Command(d.argv[0], d.argv[1:]...)
		cmd.Stdout, cmd.Stderr = d.log, d.log
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		d.mu.Lock()
		if d.stopped {
			d.mu.Unlock()
			return
		}
		err := cmd.Start()
		d.process = cmd.Process
		d.mu.Unlock()
		if err == nil {
			err = cmd.Wait()
		}
		fmt.Fprintf(d.log, "== %s %s ended: %v\n", time.Now().Format(time.StampMilli), d.name, err)
		time.Sleep(100 * time.Millisecond) // a process that cannot start without the API server must not spin
	}
}

// kill kills the process; another one is started.
func (d *daemon) kill() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.process != nil {
		_ = d.process.Kill() // it may be starting
		d.kills++
	}
}

// stop stops the daemon.
func (d *daemon) stop() {
	d.mu.Lock()
	d.stopped = true
	if d.process != nil {
		_ = d.process.Signal(syscall.SIGTERM) // it may have ended
	}
	d.mu.Unlock()
	select {
	case <-d.ended:
	case <-time.After(waitTimeout):
		d.kill()
		<-d.ended
	}
}
