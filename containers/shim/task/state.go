package task

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// State returns the state of a process.
func (s *Service) State(_ context.Context, r *api.StateRequest) (*api.StateResponse, error) {
	t, p, err := s.process(r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	status := t.state(p)
	id := r.ExecID
	if id == "" {
		id = r.ID
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return &api.StateResponse{
		ID: id, Bundle: t.bundle, Pid: uint32(p.pid), Status: status,
		Stdin: p.stdio.Stdin, Stdout: p.stdio.Stdout, Stderr: p.stdio.Stderr, Terminal: p.stdio.Terminal,
		ExitStatus: uint32(p.exit.Status), ExitedAt: timestamppb.New(p.exit.At),
	}, nil
}

// Wait waits for the exit of a process.
func (s *Service) Wait(ctx context.Context, r *api.WaitRequest) (*api.WaitResponse, error) {
	_, p, err := s.process(r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		return nil, errgrpc.ToGRPC(ctx.Err())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return &api.WaitResponse{ExitStatus: uint32(p.exit.Status), ExitedAt: timestamppb.New(p.exit.At)}, nil
}

// Pids returns the processes of a container, and its first one also when that has ended.
func (s *Service) Pids(_ context.Context, r *api.PidsRequest) (*api.PidsResponse, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	pids, err := t.inner.Pids()
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	if !slices.Contains(pids, t.init.pid) {
		pids = append(pids, t.init.pid)
	}
	execs := make(map[int]string)
	for _, p := range t.allExecs() {
		p.mu.Lock()
		execs[p.pid] = p.execID
		p.mu.Unlock()
	}
	response := &api.PidsResponse{}
	for _, pid := range pids {
		info := &tasktypes.ProcessInfo{Pid: uint32(pid)}
		if id, ok := execs[pid]; ok {
			if info.Info, err = typeurl.MarshalAnyToProto(&options.ProcessDetails{ExecID: id}); err != nil {
				return nil, errgrpc.ToGRPC(fmt.Errorf("describe process %d: %w", pid, err))
			}
		}
		response.Processes = append(response.Processes, info)
	}
	return response, nil
}

// stats reads the use of resources of a container. The cgroups are opened when they are first needed.
type stats struct {
	mu     sync.Mutex
	cgroup any // cgroup1.Cgroup or *cgroup2.Manager
}

func (s *stats) read(t *task) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cgroup == nil {
		found, err := openCgroup(t.inner.Cgroups())
		if err != nil {
			return nil, fmt.Errorf("open the cgroup of container %s: %w", t.id, err)
		}
		s.cgroup = found
	}
	if v1, ok := s.cgroup.(cgroup1.Cgroup); ok {
		return v1.Stat(cgroup1.IgnoreNotExist)
	}
	return s.cgroup.(*cgroup2.Manager).Stat()
}

// cgroupRoot is where the machine has cgroups mounted: that of version 2, or one directory for each controller of version 1.
const cgroupRoot = "/sys/fs/cgroup"

// openCgroup returns the cgroup of a container, whose paths are as runc's state has them. The cgroup of its first process may be another: a
// container that runs containers or systemd moves its processes to cgroups below its own.
func openCgroup(paths map[string]string) (any, error) {
	if cgroups.Mode() == cgroups.Unified {
		if paths[""] == "" {
			return nil, fmt.Errorf("it has none: %w", errdefs.ErrNotFound)
		}
		return cgroup2.Load(strings.TrimPrefix(paths[""], cgroupRoot))
	}
	return cgroup1.Load(func(controller cgroup1.Name) (string, error) {
		below, found := strings.CutPrefix(paths[string(controller)], cgroupRoot+"/")
		if !found {
			return "", cgroup1.ErrControllerNotActive
		}
		_, path, _ := strings.Cut(below, "/")
		return "/" + path, nil
	})
}

// Stats returns the use of resources of a container, as containerd's cgroup packages describe it.
func (s *Service) Stats(_ context.Context, r *api.StatsRequest) (*api.StatsResponse, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	values, err := t.stats.read(t)
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	encoded, err := typeurl.MarshalAnyToProto(values)
	if err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("describe the resources of container %s: %w", r.ID, err))
	}
	return &api.StatsResponse{Stats: encoded}, nil
}
