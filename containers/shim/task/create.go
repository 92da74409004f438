package task

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	eventsapi "github.com/containerd/containerd/api/events"
	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/log"
	"github.com/containerd/typeurl/v2"

	"github.com/berth-dev/berth/containers/shim/container"
	"github.com/berth-dev/berth/containers/shim/guard"
	"github.com/berth-dev/berth/containers/shim/stdio"
)

// Create creates a container and its first process, which waits for Start.
func (s *Service) Create(ctx context.Context, r *api.CreateTaskRequest) (*api.CreateTaskResponse, error) {
	if r.Checkpoint != "" {
		return nil, errgrpc.ToGRPC(fmt.Errorf("create container %s: this shim restores no checkpoints, use runc's: %w",
			r.ID, errdefs.ErrNotImplemented))
	}
	if err := s.reserve(r.ID); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	t, err := s.create(ctx, r)
	s.mu.Lock()
	if err != nil {
		delete(s.tasks, r.ID)
	} else {
		s.tasks[r.ID] = t
	}
	s.mu.Unlock()
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	s.publish(topicCreate, &eventsapi.TaskCreate{
		ContainerID: r.ID, Bundle: r.Bundle, Rootfs: r.Rootfs, Pid: uint32(t.init.pid),
		IO: &eventsapi.TaskIO{Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr, Terminal: r.Terminal},
	})
	guard.Go(s.ctx, "task.watch", func() { s.watch(t, t.init) })
	return &api.CreateTaskResponse{Pid: uint32(t.init.pid)}, nil
}

// reserve takes the id of a container that is being created.
func (s *Service) reserve(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, exists := s.tasks[id]; exists {
		return fmt.Errorf("container %s exists: %w", id, errdefs.ErrAlreadyExists)
	}
	s.tasks[id] = nil
	return nil
}

func (s *Service) create(ctx context.Context, r *api.CreateTaskRequest) (_ *task, err error) {
	var runtimeOptions options.Options
	if r.Options.GetValue() != nil {
		if err := typeurl.UnmarshalTo(r.Options, &runtimeOptions); err != nil {
			return nil, fmt.Errorf("read the runtime's options: %w", err)
		}
	}
	if err := saveOptions(r.Bundle, &runtimeOptions); err != nil {
		return nil, err
	}
	root, err := mountRootfs(r)
	t := &task{id: r.ID, bundle: r.Bundle, rootfs: root, execs: make(map[string]*process)}
	defer func() {
		if err != nil {
			t.unmount(ctx)
		}
	}()
	if err != nil {
		return nil, err
	}
	config := stdio.Config{
		Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr, Terminal: r.Terminal,
		UID: int(runtimeOptions.IoUid), GID: int(runtimeOptions.IoGid),
	}
	streams, err := stdio.New(config)
	if err != nil {
		return nil, err
	}
	inner, run, master, err := container.Create(ctx, s.deps.Orphans, container.Request{
		ID: r.ID, Bundle: r.Bundle, Terminal: r.Terminal, Streams: streams,
		Options: container.Options{
			Root: Root(&runtimeOptions, s.namespace), Runc: runtimeOptions.BinaryName, SystemdCgroup: runtimeOptions.SystemdCgroup,
			NoPivotRoot: runtimeOptions.NoPivotRoot, NoNewKeyring: runtimeOptions.NoNewKeyring,
			SeccompDir: filepath.Join(filepath.Dir(Root(&runtimeOptions, s.namespace)), seccompDir),
		},
	})
	if err != nil {
		streams.Close()
		return nil, fmt.Errorf("OCI runtime create failed: %w", err)
	}
	if err := streams.Start(s.ctx, master); err != nil {
		// Cannot happen with a terminal that was received. The container is removed by Delete.
		log.G(ctx).WithError(err).WithField("id", r.ID).Error("failed to copy a container's output")
	}
	if err := os.WriteFile(filepath.Join(r.Bundle, pidFile), strconv.AppendInt(nil, int64(run.Pid), 10), 0o644); err != nil {
		log.G(ctx).WithError(err).WithField("id", r.ID).Warn("failed to write a container's process ID")
	}
	if inner.HasOwnRoot() {
		if err := root.hide(); err != nil {
			log.G(ctx).WithError(err).WithField("id", r.ID).Warn("the machine sees a container's root")
		}
	}
	t.inner, t.init = inner, newProcess("", config)
	t.init.streams, t.init.run, t.init.pid = streams, run, run.Pid
	if t.stopOOM, err = s.oom.Add(s.ctx, r.ID, inner.Cgroups()); err != nil {
		log.G(ctx).WithError(err).Warn("OOM kills are not reported")
		t.stopOOM = func() {}
	}
	return t, nil
}

// OptionsFile keeps the runtime's options in the bundle, for the removal of a container whose shim has died.
const OptionsFile = "options.json"

func saveOptions(bundle string, o *options.Options) error {
	data, err := json.Marshal(o)
	if err == nil {
		err = os.WriteFile(filepath.Join(bundle, OptionsFile), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("save the runtime's options: %w", err)
	}
	return nil
}

// seccompDir is in the directory of runc's states of all namespaces; no namespace of containerd begins with a dot.
const seccompDir = ".seccomp"

// Root is the directory of runc's state for a containerd namespace.
func Root(o *options.Options, namespace string) string {
	root := o.GetRoot()
	if root == "" {
		root = "/run/containerd/runc" // containerd's default
	}
	return filepath.Join(root, namespace)
}

// Start starts a created container, or an exec.
func (s *Service) Start(_ context.Context, r *api.StartRequest) (*api.StartResponse, error) {
	t, p, err := s.process(r.ID, r.ExecID)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.status != tasktypes.Status_CREATED {
		return nil, errgrpc.ToGRPC(fmt.Errorf("start a process that is %s: %w", p.status, errdefs.ErrFailedPrecondition))
	}
	if r.ExecID == "" {
		err = s.startInit(t, p)
	} else {
		err = s.startExec(t, p)
	}
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return &api.StartResponse{Pid: uint32(p.pid)}, nil
}

func (s *Service) startInit(t *task, p *process) error {
	if err := t.inner.Start(p.ended); err != nil {
		return fmt.Errorf("OCI runtime start failed: %w", err)
	}
	p.status = tasktypes.Status_RUNNING
	s.publish(topicStart, &eventsapi.TaskStart{ContainerID: t.id, Pid: uint32(p.pid)})
	return nil
}

func (s *Service) startExec(t *task, p *process) (err error) {
	if err := t.beginExec(); err != nil {
		return err
	}
	defer t.endExecStart()
	defer func() {
		if err != nil {
			p.status, p.exit.Status = tasktypes.Status_STOPPED, 255
			close(p.done)
			t.running.Done()
		}
	}()
	streams, err := stdio.New(p.stdio)
	if err != nil {
		return err
	}
	run, master, err := t.inner.Exec(p.spec, streams)
	if err != nil {
		streams.Close()
		return fmt.Errorf("OCI runtime exec failed: %w", err)
	}
	if err := streams.Start(s.ctx, master); err != nil {
		log.G(s.ctx).WithError(err).WithField("id", t.id).Error("failed to copy the output of an exec")
	}
	p.streams, p.run, p.pid, p.status = streams, run, run.Pid, tasktypes.Status_RUNNING
	s.publish(topicExecStarted, &eventsapi.TaskExecStarted{ContainerID: t.id, ExecID: p.execID, Pid: uint32(p.pid)})
	guard.Go(s.ctx, "task.watchExec", func() { s.watch(t, p) })
	if t.hasEnded() {
		s.killOthers(t) // the exec may have joined the container after the others were killed, and the container's exit waits for it
	}
	return nil
}
