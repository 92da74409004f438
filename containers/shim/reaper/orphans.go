package reaper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Orphans reaps the processes that the kernel gives to this process because their parents have died.
//
// The kernel gives the children of a thread that ends to the main thread, too. runc's library ends a thread only after it has started
// a process on chosen CPUs, so the starter of such a process calls [Orphans.Hold] meanwhile, and processes that have an owner are
// known by [Orphans.Own].
type Orphans struct {
	kick chan struct{}

	mu    sync.Mutex // guards below
	held  int
	owned map[int]struct{}
}

// NewOrphans makes this process the one that gets the orphans of its descendants.
func NewOrphans() (*Orphans, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become the reaper of orphaned processes: %w", err)
	}
	return &Orphans{kick: make(chan struct{}, 1), owned: make(map[int]struct{})}, nil
}

// Hold keeps Run from reaping until release is called.
func (o *Orphans) Hold() (release func()) {
	o.mu.Lock()
	o.held++
	o.mu.Unlock()
	return func() {
		o.mu.Lock()
		o.held--
		o.mu.Unlock()
		o.wake()
	}
}

// Own leaves the process pid to its owner, until disown is called after the owner has reaped it.
func (o *Orphans) Own(pid int) (disown func()) {
	o.mu.Lock()
	o.owned[pid] = struct{}{}
	o.mu.Unlock()
	return func() {
		o.mu.Lock()
		delete(o.owned, pid)
		o.mu.Unlock()
		o.wake()
	}
}

func (o *Orphans) wake() {
	select {
	case o.kick <- struct{}{}:
	default:
	}
}

// Run reaps orphans until ctx is done. It has to run on the main thread of the process, locked to it, and nothing may start a process
// from there.
func (o *Orphans) Run(ctx context.Context) {
	exits := make(chan os.Signal, 1)
	signal.Notify(exits, unix.SIGCHLD)
	defer signal.Stop(exits)
	for {
		for o.reapOne() {
		}
		select {
		case <-exits:
		case <-o.kick:
		case <-ctx.Done():
			return
		}
	}
}

// siginfo is the part of siginfo_t that waitid fills in, on 64-bit machines.
type siginfo struct {
	signo, errno, code, _ int32
	pid, uid, status      int32
	_                     [100]byte
}

// reapOne reaps one orphan, and reports whether there may be more.
func (o *Orphans) reapOne() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.held > 0 {
		return false
	}
	var info siginfo
	err := unix.Waitid(unix.P_ALL, 0, (*unix.Siginfo)(unsafe.Pointer(&info)),
		unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WNOTHREAD|unix.WALL, nil)
	if errors.Is(err, unix.EINTR) {
		return true
	}
	pid := int(info.pid)
	if err != nil || pid == 0 {
		return false
	}
	if _, owned := o.owned[pid]; owned {
		return false // its owner reaps it, and then calls disown
	}
	_, err = unix.Wait4(pid, nil, unix.WNOHANG|unix.WNOTHREAD|unix.WALL, nil)
	return err == nil || errors.Is(err, unix.EINTR)
}
