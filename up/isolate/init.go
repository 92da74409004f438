package isolate

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/netns"
	"github.com/berth-dev/berth/up/firewall"
)

// errParentEnded says that the outer process has ended: there is nothing to report to.
var errParentEnded = errors.New("the outer process has ended")

// RunInit is the first process of the namespaces: it prepares the mounts, starts the cluster's process, waits for all orphaned
// processes, and ends with the cluster's exit code. When the outer process has ended, it ends the cluster at once.
func (c Config) RunInit(ctx context.Context) (code int, err error) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	signal.Ignore(syscall.SIGPIPE)
	control := os.NewFile(uintptr(c.Control), "control")
	if c.Network != 0 {
		unix.CloseOnExec(c.Network) // the cluster has no use for it
	}
	if _, err := control.WriteString(handlersSet); err != nil {
		return 0, nil //nolint:nilerr // the outer process has ended
	}
	// The lock is held until what the cluster leaves is removed.
	lock := os.NewFile(uintptr(c.Lock), "lock")
	defer lock.Close()
	prepare := prepareMounts
	if c.UserNamespace {
		prepare = c.prepareUserNamespace
	}
	if err := prepare(); err != nil {
		return 1, err
	}
	received := bufio.NewReader(control)
	inner, err := readAddresses(received)
	if errors.Is(err, errParentEnded) {
		return 0, nil
	}
	if err != nil {
		return 1, err
	}
	cluster, err := c.startCluster(inner, lock)
	if err != nil {
		return 1, err
	}
	parentEnded := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, received) // until its other end is closed
		close(parentEnded)
	}()
	reaper := newReaper(cluster)
	for {
		select {
		case came := <-signals:
			// The process is reaped by the reaper alone, which then reports it: until that its PID is its own.
			_ = unix.Kill(cluster, came.(syscall.Signal))
			continue
		case <-parentEnded:
			reaper.killAll()
			return code, errors.Join(c.removeFirewallRules(ctx), c.release(ctx))
		case code = <-reaper.ended:
		}
		reaper.killAll()
		return code, c.release(ctx)
	}
}

// removeFirewallRules removes the machine's rules for the link, which the outer process has kept until it was killed. Its other rules
// ended with it.
func (c Config) removeFirewallRules(ctx context.Context) error {
	if c.Network == 0 {
		return nil
	}
	return netns.Do(fmt.Sprintf("/proc/self/fd/%d", c.Network), func() error { return firewall.Remove(ctx, c.Link) })
}

// readAddresses reads the addresses of this namespace's end of the link.
func readAddresses(control *bufio.Reader) (addresses, error) {
	var inner addresses
	line, err := control.ReadBytes('\n')
	if err != nil {
		return inner, errParentEnded
	}
	if err := json.Unmarshal(line, &inner); err != nil {
		return inner, fmt.Errorf("read the link's addresses from the outer process: %w", err)
	}
	return inner, nil
}

// startCluster starts the cluster's process and returns its PID.
func (c Config) startCluster(inner addresses, lock *os.File) (pid int, err error) {
	env, err := c.environment(inner)
	if err != nil {
		return 0, err
	}
	listener := os.NewFile(uintptr(c.Listener), "listener")
	defer listener.Close()
	files := []*os.File{os.Stdin, os.Stdout, os.Stderr, lock, listener}
	if c.Page != 0 {
		page := os.NewFile(uintptr(c.Page), "page")
		defer page.Close()
		files = append(files, page)
	}
	process, err := os.StartProcess(c.Argv[0], c.Argv, &os.ProcAttr{Env: env, Files: files})
	if err != nil {
		return 0, fmt.Errorf("start the cluster: %w", err)
	}
	pid = process.Pid // Release overwrites it
	return pid, process.Release()
}

// reaper waits for all processes that have no other parent.
type reaper struct {
	// ended gets the exit code of the cluster's process.
	ended chan int
	// none is closed when this process has no child left.
	none chan struct{}
	// killing says that each process that ends may have left others, which are killed.
	killing atomic.Bool
}

func newReaper(cluster int) *reaper {
	r := &reaper{ended: make(chan int, 1), none: make(chan struct{})}
	go r.run(cluster)
	return r
}

func (r *reaper) run(cluster int) {
	defer close(r.none)
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return // ECHILD
		}
		if pid == cluster {
			r.ended <- exitCode(status)
		}
		if r.killing.Load() {
			_ = unix.Kill(-1, unix.SIGKILL) // those whose fork the first kill has missed
		}
	}
}

// killAll kills all other processes of the PID namespace and waits for them.
func (r *reaper) killAll() {
	r.killing.Store(true)
	_ = unix.Kill(-1, unix.SIGKILL) // ESRCH: there are none
	<-r.none
}
