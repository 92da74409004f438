package task

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	eventsapi "github.com/containerd/containerd/api/events"
	api "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/berth-dev/berth/containers/shim/stdio"
)

// Exec adds a process to a container; Start starts it.
func (s *Service) Exec(_ context.Context, r *api.ExecProcessRequest) (*emptypb.Empty, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	p := newProcess(r.ExecID, stdio.Config{
		Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr, Terminal: r.Terminal, UID: t.init.stdio.UID, GID: t.init.stdio.GID,
	})
	if err := json.Unmarshal(r.Spec.GetValue(), &p.spec); err != nil || p.spec == nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("read the process of exec %s: %w", r.ExecID, errors.Join(err, errdefs.ErrInvalidArgument)))
	}
	p.spec.Terminal = r.Terminal
	select {
	case <-t.init.done:
		return nil, errgrpc.ToGRPC(fmt.Errorf("exec in container %s: it has ended: %w", r.ID, errdefs.ErrFailedPrecondition))
	default:
	}
	if err := t.addExec(p); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	s.publish(topicExecAdded, &eventsapi.TaskExecAdded{ContainerID: r.ID, ExecID: r.ExecID})
	return empty, nil
}

// Kill sends a signal to a process.
func (s *Service) Kill(_ context.Context, r *api.KillRequest) (*emptypb.Empty, error) {
	t, p, err := s.process(r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	if r.ExecID == "" {
		err = t.inner.Signal(unix.Signal(r.Signal))
		if r.All && errors.Is(err, libcontainer.ErrNotRunning) {
			err = nil
		}
	} else {
		err = p.kill(unix.Signal(r.Signal))
	}
	if errors.Is(err, libcontainer.ErrNotRunning) {
		err = fmt.Errorf("process already finished: %w", errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return empty, nil
}

// kill sends a signal to an exec.
func (p *process) kill(signal unix.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.status {
	case tasktypes.Status_CREATED:
		return fmt.Errorf("exec %s is not started: %w", p.execID, errdefs.ErrFailedPrecondition)
	case tasktypes.Status_RUNNING:
		return p.run.Signal(signal)
	default:
		return libcontainer.ErrNotRunning
	}
}

// Pause freezes a container.
func (s *Service) Pause(ctx context.Context, r *api.PauseRequest) (*emptypb.Empty, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	t.freezing.Lock()
	defer t.freezing.Unlock()
	if status := t.state(t.init); status != tasktypes.Status_RUNNING {
		return nil, errgrpc.ToGRPC(fmt.Errorf("pause a container that is %s: %w", status, errdefs.ErrFailedPrecondition))
	}
	if err := t.beginPause(ctx); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	if err := t.inner.Pause(); err != nil {
		t.setPaused(false, false)
		return nil, errgrpc.ToGRPC(fmt.Errorf("OCI runtime pause failed: %w", err))
	}
	t.setPaused(false, true)
	s.publish(topicPaused, &eventsapi.TaskPaused{ContainerID: r.ID})
	return empty, nil
}

// Resume lets a paused container go on.
func (s *Service) Resume(_ context.Context, r *api.ResumeRequest) (*emptypb.Empty, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	t.freezing.Lock()
	defer t.freezing.Unlock()
	if status := t.state(t.init); status != tasktypes.Status_PAUSED {
		return nil, errgrpc.ToGRPC(fmt.Errorf("resume a container that is %s: %w", status, errdefs.ErrFailedPrecondition))
	}
	if err := t.inner.Resume(); err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("OCI runtime resume failed: %w", err))
	}
	t.setPaused(false, false)
	s.publish(topicResumed, &eventsapi.TaskResumed{ContainerID: r.ID})
	return empty, nil
}

func (t *task) setPaused(pausing, paused bool) {
	t.mu.Lock()
	t.pause.pausing, t.pause.paused = pausing, paused
	t.mu.Unlock()
}

// ResizePty sets the size of a process's terminal.
func (s *Service) ResizePty(_ context.Context, r *api.ResizePtyRequest) (*emptypb.Empty, error) {
	_, p, err := s.process(r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	streams := p.openStreams()
	if streams == nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("resize the terminal of an exec that is not started: %w", errdefs.ErrFailedPrecondition))
	}
	if err := streams.Resize(uint16(r.Width), uint16(r.Height)); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return empty, nil
}

// CloseIO closes a process's standard input.
func (s *Service) CloseIO(_ context.Context, r *api.CloseIORequest) (*emptypb.Empty, error) {
	_, p, err := s.process(r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	if streams := p.openStreams(); streams != nil {
		if err := streams.CloseInput(); err != nil {
			return nil, errgrpc.ToGRPC(err)
		}
	}
	return empty, nil
}

func (p *process) openStreams() *stdio.Streams {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.streams
}

// Update changes a container's resources.
func (s *Service) Update(_ context.Context, r *api.UpdateTaskRequest) (*emptypb.Empty, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	var resources specs.LinuxResources
	if err := json.Unmarshal(r.Resources.GetValue(), &resources); err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("read the resources of container %s: %w", r.ID, errors.Join(err, errdefs.ErrInvalidArgument)))
	}
	if err := t.inner.Update(&resources); err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("OCI runtime update failed: %w", err))
	}
	return empty, nil
}
