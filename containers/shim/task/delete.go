package task

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	eventsapi "github.com/containerd/containerd/api/events"
	api "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/log"
	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// drainLimit bounds the wait for the rest of a process's output, which another process may have inherited.
const drainLimit = 10 * time.Second

// Delete removes a container, or an exec, that does not run.
func (s *Service) Delete(ctx context.Context, r *api.DeleteRequest) (*api.DeleteResponse, error) {
	t, p, err := s.process(r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	var response *api.DeleteResponse
	if r.ExecID != "" {
		response, err = t.deleteExec(ctx, p)
	} else {
		response, err = s.deleteTask(ctx, t)
	}
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return response, nil
}

func (t *task) deleteExec(ctx context.Context, p *process) (*api.DeleteResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.status == tasktypes.Status_RUNNING {
		return nil, fmt.Errorf("delete exec %s: it runs: %w", p.execID, errdefs.ErrFailedPrecondition)
	}
	if p.streams != nil {
		if err := p.streams.Drain(ctx, drainLimit); err != nil {
			log.G(ctx).WithError(err).WithField("id", t.id).WithField("exec", p.execID).Warn("output of an exec is lost")
		}
		p.streams.Close()
	}
	if p.status == tasktypes.Status_CREATED {
		p.status = tasktypes.Status_STOPPED // it can be started no more
		close(p.done)
	}
	t.mu.Lock()
	delete(t.execs, p.execID)
	t.mu.Unlock()
	return &api.DeleteResponse{
		Pid: uint32(p.pid), ExitStatus: uint32(p.exit.Status), ExitedAt: timestamppb.New(p.exit.At),
	}, nil
}

func (s *Service) deleteTask(ctx context.Context, t *task) (*api.DeleteResponse, error) {
	t.deleting.Lock()
	defer t.deleting.Unlock()
	if known, err := s.task(t.id); err != nil || known != t {
		return nil, fmt.Errorf("container %s is deleted: %w", t.id, errdefs.ErrNotFound)
	}
	if err := t.endCreated(ctx); err != nil {
		return nil, err
	}
	for _, p := range t.allExecs() {
		if _, err := t.deleteExec(ctx, p); err != nil {
			return nil, err // all have ended with the first process
		}
	}
	if err := t.init.streams.Drain(ctx, drainLimit); err != nil {
		log.G(ctx).WithError(err).WithField("id", t.id).Warn("output of a container is lost")
	}
	if err := t.inner.Delete(); err != nil {
		return nil, fmt.Errorf("failed to delete task: %w", err)
	}
	t.init.streams.Close()
	if err := t.rootfs.unmount(); err != nil {
		return nil, fmt.Errorf("unmount the container's root: %w", err)
	}
	if err := os.Rename(filepath.Join(t.bundle, ExitFile), filepath.Join(t.bundle, DeletedFile)); err != nil {
		log.G(ctx).WithError(err).WithField("id", t.id).Warn("failed to note the removal of a container")
	}
	s.mu.Lock()
	delete(s.tasks, t.id)
	s.mu.Unlock()
	response := t.deleteResponse()
	s.publish(topicDelete, &eventsapi.TaskDelete{
		ContainerID: t.id, Pid: response.Pid, ExitStatus: response.ExitStatus, ExitedAt: response.ExitedAt,
	})
	return response, nil
}

// endCreated waits for the end of the first process: it must have ended, or never have been started; then it is killed.
func (t *task) endCreated(ctx context.Context) error {
	t.init.mu.Lock()
	status := t.init.status
	t.init.mu.Unlock()
	switch status {
	case tasktypes.Status_STOPPED:
		return nil
	case tasktypes.Status_CREATED:
		if err := t.inner.Signal(unix.SIGKILL); err != nil && !errors.Is(err, libcontainer.ErrNotRunning) {
			return fmt.Errorf("kill a container that was not started: %w", err)
		}
		select {
		case <-t.init.done:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("wait for the end of a container that was not started: %w", ctx.Err())
		}
	default:
		return fmt.Errorf("delete container %s: it runs: %w", t.id, errdefs.ErrFailedPrecondition)
	}
}
