package task

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	eventsapi "github.com/containerd/containerd/api/events"
	api "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/log"
	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/berth-dev/berth/containers/shim/container"
)

// Files in a bundle.
const (
	// pidFile has the process ID of the container's first process, for people and tools.
	pidFile = "init.pid"
	// ExitFile has how the container ended, as a DeleteResponse, once its exit is published.
	ExitFile = "exit.pb"
	// DeletedFile is ExitFile once the container is deleted and nothing is left of it but the bundle.
	DeletedFile = "deleted.pb"
)

func oomEvent(id string) proto.Message { return &eventsapi.TaskOOM{ContainerID: id} }

// watch waits for the end of a process and publishes it.
func (s *Service) watch(t *task, p *process) {
	exit, err := p.run.Wait()
	if err != nil {
		log.G(s.ctx).WithError(err).WithField("id", t.id).Error("failed to get the exit code of a process")
		exit = container.Exit{Status: 255, At: time.Now()}
	}
	close(p.ended)
	if p == t.init {
		s.endOthers(t)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.streams.Ended()
	p.exit, p.status = exit, tasktypes.Status_STOPPED
	if p == t.init {
		if err := t.saveExit(); err != nil {
			log.G(s.ctx).WithError(err).WithField("id", t.id).Error("failed to save an exit code")
		}
	}
	id := p.execID
	if p == t.init {
		id = t.id
	}
	s.publish(topicExit, &eventsapi.TaskExit{
		ContainerID: t.id, ID: id, Pid: uint32(p.pid), ExitStatus: uint32(exit.Status), ExitedAt: timestamppb.New(exit.At),
	})
	close(p.done)
	if p != t.init {
		t.running.Done()
	}
}

// endOthers ends the other processes of a container whose first has ended, and waits until the ends of its execs are published.
func (s *Service) endOthers(t *task) {
	t.mu.Lock()
	t.initEnded = true
	t.mu.Unlock()
	s.killOthers(t)
	t.running.Wait()
	t.stopOOM()
}

// killOthers kills the processes of a container whose first has ended, which the kernel does if they have a namespace of process IDs.
func (s *Service) killOthers(t *task) {
	if t.inner.HasOwnPIDNamespace() {
		return
	}
	if err := t.inner.Signal(unix.SIGKILL); err != nil && !errors.Is(err, libcontainer.ErrNotRunning) {
		log.G(s.ctx).WithError(err).WithField("id", t.id).Error("failed to end the processes of a container that has ended")
	}
}

// deleteResponse is the exit of the first process.
func (t *task) deleteResponse() *api.DeleteResponse {
	return &api.DeleteResponse{
		Pid: uint32(t.init.pid), ExitStatus: uint32(t.init.exit.Status), ExitedAt: timestamppb.New(t.init.exit.At),
	}
}

// saveExit saves the exit for the case that the shim is killed before the container is deleted.
func (t *task) saveExit() error {
	data, err := proto.Marshal(t.deleteResponse())
	if err != nil {
		return err
	}
	path := filepath.Join(t.bundle, ExitFile)
	if err := os.WriteFile(path+".tmp", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}
