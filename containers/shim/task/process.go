package task

import (
	"context"
	"fmt"
	"sync"

	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-dev/berth/containers/shim/container"
	"github.com/berth-dev/berth/containers/shim/stdio"
)

// task is a container with its processes.
type task struct {
	id, bundle string
	rootfs     *rootfs
	inner      *container.Container
	init       *process
	stopOOM    func()
	stats      stats
	deleting   sync.Mutex // held by Delete
	freezing   sync.Mutex // held by Pause and Resume

	mu        sync.Mutex // guards below
	execs     map[string]*process
	initEnded bool
	pause     pause

	running sync.WaitGroup // execs that are started; none is added once initEnded
}

// pause is whether a container is paused, and what a pause waits for.
type pause struct {
	pausing, paused bool
	starting        int           // execs that are being started; none begins while the container is pausing or paused
	started         chan struct{} // closed when starting becomes 0; nil if nothing waits for that
}

// process is one process of a task.
type process struct {
	execID string // empty for the first process
	stdio  stdio.Config
	spec   *specs.Process // of an exec

	ended chan struct{} // closed when the process has ended
	done  chan struct{} // closed when its exit is published, or it could not be started

	// mu is held while the process is started, until the event of that is queued; guards below.
	mu      sync.Mutex
	status  tasktypes.Status
	streams *stdio.Streams // nil before the start of an exec
	run     *container.Process
	pid     int // of the first process: constant
	exit    container.Exit
}

func newProcess(execID string, config stdio.Config) *process {
	return &process{
		execID: execID, stdio: config, ended: make(chan struct{}), done: make(chan struct{}), status: tasktypes.Status_CREATED,
	}
}

// process returns an exec, or the first process for an empty id.
func (t *task) process(execID string) (*process, error) {
	if execID == "" {
		return t.init, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.execs[execID]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("container %s has no exec %s: %w", t.id, execID, errdefs.ErrNotFound)
}

// addExec adds an exec that is not started.
func (t *task) addExec(p *process) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.execs[p.execID] != nil {
		return fmt.Errorf("container %s has an exec %s: %w", t.id, p.execID, errdefs.ErrAlreadyExists)
	}
	t.execs[p.execID] = p
	return nil
}

// allExecs returns the execs that are not deleted.
func (t *task) allExecs() (all []*process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.execs {
		all = append(all, p)
	}
	return all
}

// beginExec counts an exec that is being started, unless the container has ended.
func (t *task) beginExec() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.initEnded {
		return fmt.Errorf("the first process of container %s has ended: %w", t.id, errdefs.ErrFailedPrecondition)
	}
	if t.pause.paused || t.pause.pausing {
		return fmt.Errorf("container %s is paused: %w", t.id, errdefs.ErrFailedPrecondition)
	}
	t.running.Add(1)
	t.pause.starting++
	return nil
}

// endExecStart says that an exec of beginExec runs, or could not be started.
func (t *task) endExecStart() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pause.starting--; t.pause.starting == 0 && t.pause.started != nil {
		close(t.pause.started)
		t.pause.started = nil
	}
}

// beginPause lets no exec begin, and waits for those that are being started: one that joins the container's cgroup when that is frozen would
// hang, and the requests that concern it, and the container's exit, with it.
func (t *task) beginPause(ctx context.Context) error {
	t.mu.Lock()
	t.pause.pausing, t.pause.paused = true, false
	var started chan struct{}
	if t.pause.starting > 0 {
		started = make(chan struct{})
		t.pause.started = started
	}
	t.mu.Unlock()
	if started == nil {
		return nil
	}
	select {
	case <-started:
		return nil
	case <-ctx.Done():
		t.setPaused(false, false)
		return fmt.Errorf("wait for execs that are being started in container %s: %w", t.id, ctx.Err())
	}
}

// hasEnded reports whether the first process has ended.
func (t *task) hasEnded() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.initEnded
}

// state is the status of a process, which is that of the container while that is paused.
func (t *task) state(p *process) tasktypes.Status {
	t.mu.Lock()
	pausing, paused := t.pause.pausing, t.pause.paused
	t.mu.Unlock()
	if pausing {
		return tasktypes.Status_PAUSING
	}
	select {
	case <-t.init.done:
		paused = false
	default:
	}
	if paused {
		return tasktypes.Status_PAUSED
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}
