package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/log"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/containers/shim/reaper"
	"github.com/berth-dev/berth/containers/shim/seccompcache"
	"github.com/berth-dev/berth/containers/shim/stdio"
)

// killTimeout bounds the wait for a killed container; a process may be in the kernel for long.
const killTimeout = 10 * time.Second

// Container is a container that this process has created. Its methods are safe for concurrent use.
type Container struct {
	id      string
	options Options
	orphans *reaper.Orphans
	// created is the library's container as of its creation. It is used for what needs no current configuration.
	created *libcontainer.Container
	ownPIDs bool
	ownRoot bool
	cgroups map[string]string
	seccomp string // file of the compiled profile; empty if there is none
}

// Request describes a container to create.
type Request struct {
	ID string
	// Bundle is the absolute path of the directory with config.json.
	Bundle   string
	Terminal bool
	Streams  *stdio.Streams
	Options  Options
}

// Create creates a container and its first process, which waits for [Container.Start]. master is the process's terminal if the
// request has one. A container that cannot be created leaves nothing.
func Create(ctx context.Context, orphans *reaper.Orphans, request Request) (_ *Container, _ *Process, master *os.File, err error) {
	spec, err := loadSpec(request.Bundle)
	if err != nil {
		return nil, nil, nil, err
	}
	spec.Process.Terminal = request.Terminal
	trimSandbox(spec)
	converted, err := config(request.ID, request.Bundle, spec, request.Options)
	if err != nil {
		return nil, nil, nil, err
	}
	process, err := newProcess(spec.Process)
	if err != nil {
		return nil, nil, nil, err
	}
	process.Init = true
	created, err := libcontainer.Create(request.Options.Root, request.ID, converted)
	if err != nil {
		return nil, nil, nil, err
	}
	profile := compiledProfile(ctx, converted, request)
	first, master, err := starter{created, orphans, profile}.start(process, request.Terminal, request.Streams)
	var state *libcontainer.State
	if err == nil {
		state, err = created.State()
	}
	if err != nil {
		if first != nil { // it runs, and only its terminal or its state is missing
			_ = first.Signal(unix.SIGKILL)
			_, waitErr := first.Wait()
			err = errors.Join(err, waitErr)
		}
		if master != nil {
			_ = master.Close()
		}
		if destroyErr := created.Destroy(); destroyErr != nil {
			log.G(ctx).WithError(destroyErr).WithField("id", request.ID).Warn("failed to remove a container that was not created")
		}
		return nil, nil, nil, err
	}
	return &Container{
		id: request.ID, options: request.Options, orphans: orphans, created: created,
		ownPIDs: hasOwnPIDNamespace(spec), ownRoot: hasOwnRoot(converted), cgroups: state.CgroupPaths, seccomp: profile,
	}, first, master, nil
}

// compiledProfile returns the file of the container's compiled seccomp profile, empty if it has none. Without that file the container's
// processes compile it.
func compiledProfile(ctx context.Context, config *configs.Config, request Request) string {
	if config.Seccomp == nil || request.Options.SeccompDir == "" {
		return ""
	}
	file, err := seccompcache.Cache{Dir: request.Options.SeccompDir}.File(config.Seccomp)
	if err != nil {
		log.G(ctx).WithError(err).WithField("id", request.ID).Warn("each process of a container compiles its seccomp profile")
	}
	return file
}

// Cgroups are the container's cgroups: by controller on version 1, one with an empty key on version 2.
func (c *Container) Cgroups() map[string]string { return c.cgroups }

// HasOwnPIDNamespace reports whether the kernel ends all processes of the container with its first.
func (c *Container) HasOwnPIDNamespace() bool { return c.ownPIDs }

// HasOwnRoot reports whether the container's root does not depend on the directory of the bundle at which it was mounted for its creation.
func (c *Container) HasOwnRoot() bool { return c.ownRoot }

// Start lets the first process run the user's program. ended is closed when that process has ended.
func (c *Container) Start(ended <-chan struct{}) error {
	return startInit(filepath.Join(c.options.Root, c.id), ended)
}

func (c *Container) load() (*libcontainer.Container, error) {
	return libcontainer.Load(c.options.Root, c.id)
}

// Signal sends a signal to the first process; SIGKILL reaches all processes of a container without a PID namespace of its own.
func (c *Container) Signal(signal unix.Signal) error { return c.created.Signal(signal) }

// Pause freezes the container's processes.
func (c *Container) Pause() error {
	loaded, err := c.load()
	if err != nil {
		return err
	}
	return loaded.Pause()
}

// Resume lets the processes of a paused container go on.
func (c *Container) Resume() error {
	loaded, err := c.load()
	if err != nil {
		return err
	}
	return loaded.Resume()
}

// Pids returns the processes of the container.
func (c *Container) Pids() ([]int, error) { return c.created.Processes() }

// Update changes the container's resources; what is not set stays.
func (c *Container) Update(resources *specs.LinuxResources) error {
	loaded, err := c.load()
	if err != nil {
		return err
	}
	changed := loaded.Config()
	copied := *changed.Cgroups
	values := *changed.Cgroups.Resources
	copied.Resources = &values
	changed.Cgroups = &copied
	apply(&values, resources)
	return loaded.Set(changed)
}

// Delete removes a container whose first process has ended: its cgroups and its state.
func (c *Container) Delete() error {
	err := c.created.Destroy()
	if errors.Is(err, libcontainer.ErrNotExist) {
		return nil
	}
	return err
}

// Remove kills and removes a container that another process has created, as runc's delete --force does, also one that was not
// created completely. It returns nil if there is none.
func Remove(root, id string) error {
	loaded, err := libcontainer.Load(root, id)
	if errors.Is(err, libcontainer.ErrNotExist) {
		return os.RemoveAll(filepath.Join(root, id)) // its creation was interrupted
	}
	if err != nil {
		return fmt.Errorf("load container %s: %w", id, err)
	}
	state, err := loaded.State()
	if err != nil {
		return fmt.Errorf("read the state of container %s: %w", id, err)
	}
	gone, err := reaper.Follow(state.InitProcessPid)
	if err != nil {
		return fmt.Errorf("kill container %s: %w", id, err)
	}
	if err := loaded.Signal(unix.SIGKILL); err != nil && !errors.Is(err, libcontainer.ErrNotRunning) {
		log.L.WithError(err).WithField("id", id).Warn("failed to kill a container")
	}
	if status, err := loaded.Status(); err != nil || status != libcontainer.Stopped {
		if err := gone(time.Now().Add(killTimeout)); err != nil {
			return fmt.Errorf("wait for the end of container %s: %w", id, err)
		}
	}
	return loaded.Destroy()
}
