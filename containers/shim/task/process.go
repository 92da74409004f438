package task

import (
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

	mu        sync.Mutex // guards below
	execs     map[string]*process
	initEnded bool
	pausing   bool
	paused    bool

	running sync.WaitGroup // execs that are started; none is added once initEnded
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
	if t.paused || t.pausing {
		return fmt.Errorf("container %s is paused: %w", t.id, errdefs.ErrFailedPrecondition)
	}
	t.running.Add(1)
	return nil
}

// state is the status of a process, which is that of the container while that is paused.
func (t *task) state(p *process) tasktypes.Status {
	t.mu.Lock()
	pausing, paused := t.pausing, t.paused
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
