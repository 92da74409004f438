package task

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/log"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/berth-dev/berth/containers/shim/events"
	"github.com/berth-dev/berth/containers/shim/oom"
	"github.com/berth-dev/berth/containers/shim/reaper"
)

// Topics of containerd's events.
const (
	topicCreate      = "/tasks/create"
	topicStart       = "/tasks/start"
	topicOOM         = "/tasks/oom"
	topicExit        = "/tasks/exit"
	topicDelete      = "/tasks/delete"
	topicExecAdded   = "/tasks/exec-added"
	topicExecStarted = "/tasks/exec-started"
	topicPaused      = "/tasks/paused"
	topicResumed     = "/tasks/resumed"
)

var empty = &emptypb.Empty{}

// Deps are the dependencies of a service; all are required.
type Deps struct {
	Orphans   *reaper.Orphans
	Publisher *events.Publisher
	// Shutdown ends the shim. It must not wait for the request that calls it.
	Shutdown func()
}

// Service serves the Task API. It is safe for concurrent use.
type Service struct {
	ctx       context.Context // of what outlives a request
	namespace string
	deps      Deps
	oom       *oom.Watcher

	mu    sync.Mutex       // guards below
	tasks map[string]*task // nil while the container is created
}

// New returns the service for the containers of a containerd namespace. ctx is the life of the shim.
func New(ctx context.Context, deps Deps, namespace string) (*Service, error) {
	if deps.Orphans == nil || deps.Publisher == nil || deps.Shutdown == nil {
		return nil, errors.New("task: Deps.Orphans, Deps.Publisher and Deps.Shutdown are required")
	}
	s := &Service{ctx: ctx, namespace: namespace, deps: deps, tasks: make(map[string]*task)}
	s.oom = oom.New(func(id string) { s.publish(topicOOM, oomEvent(id)) })
	return s, nil
}

func (s *Service) publish(topic string, event proto.Message) {
	if err := s.deps.Publisher.Publish(topic, event); err != nil {
		log.G(s.ctx).WithError(err).Error("failed to publish an event")
	}
}

// task returns a container's task.
func (s *Service) task(id string) (*task, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tasks[id]; t != nil {
		return t, nil
	}
	return nil, errgrpc.ToGRPC(fmt.Errorf("container %s is not created: %w", id, errdefs.ErrNotFound))
}

// process returns a process of a container: its first one, or an exec.
func (s *Service) process(id, execID string) (*task, *process, error) {
	t, err := s.task(id)
	if err != nil {
		return nil, nil, err
	}
	p, err := t.process(execID)
	if err != nil {
		return nil, nil, errgrpc.ToGRPC(err)
	}
	return t, p, nil
}

// Connect returns the process IDs of the shim and of a container's first process, 0 if there is no such container.
func (s *Service) Connect(_ context.Context, r *api.ConnectRequest) (*api.ConnectResponse, error) {
	response := &api.ConnectResponse{ShimPid: uint32(os.Getpid())}
	if t, err := s.task(r.ID); err == nil {
		response.TaskPid = uint32(t.init.pid)
	}
	return response, nil
}

// Shutdown ends the shim if it has no containers.
func (s *Service) Shutdown(context.Context, *api.ShutdownRequest) (*emptypb.Empty, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.tasks) == 0 {
		s.deps.Shutdown()
	}
	return empty, nil
}
