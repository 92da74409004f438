package podworker

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/container"
)

const opPin = "pin"

// move is a running container that has to run on other CPUs.
type move struct{ id, name string }

// pinContainers starts to move running containers to the CPUs that are theirs now, even while their Pod is being stopped: a new container
// may wait for the CPUs that they leave. What the runtime reports does not count: its own end in the middle of a change may have left a
// container elsewhere, so each one that this process has not started or moved is moved once.
func (w *worker) pinContainers(ctx context.Context) {
	if w.ops[opPin] != nil {
		return
	}
	var todo []move
	for _, c := range w.runtime.Containers {
		if c.State != container.StateRunning {
			continue
		}
		if want := w.m.deps.Builder.CPUs(w.uid, c.Name); want != "" && want != w.resize.pinned[c.ID] {
			todo = append(todo, move{c.ID, c.Name})
		}
	}
	if len(todo) == 0 || w.backingOff(opPin) {
		return
	}
	w.startOp(ctx, opPin, op{}, func(ctx context.Context) func() {
		moved, err := pin(ctx, &w.m.deps, w.uid, todo)
		return func() {
			for _, c := range todo {
				if cpus, ok := moved[c.id]; ok {
					w.resize.pinned[c.id] = cpus
				} else {
					delete(w.resize.pinned, c.id)
				}
			}
			w.invalidate()
			if err != nil {
				w.failStep(ctx, opPin, err)
				return
			}
			w.retries.done(opPin)
		}
	})
}

// pin changes the CPUs of containers. It returns where those are, by their ids, for which that is known.
func pin(ctx context.Context, deps *Deps, uid types.UID, todo []move) (moved map[string]string, err error) {
	moved = map[string]string{}
	var errs []error
	for _, c := range todo {
		cpus := deps.Builder.Move(uid, c.name)
		_, err := deps.Runtime.UpdateContainerResources(uncancelled(ctx), &runtimeapi.UpdateContainerResourcesRequest{
			ContainerId: c.id, Linux: &runtimeapi.LinuxContainerResources{CpusetCpus: cpus},
		})
		if ignoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("move container %q to CPUs %s: %w", c.name, cpus, err))
			continue
		}
		moved[c.id] = cpus
	}
	return moved, errors.Join(errs...)
}

// recordPlaces passes on which CPUs the containers are on that run, or that the runtime may be starting still for an earlier process.
func (w *worker) recordPlaces() {
	running := map[string]string{}
	for _, c := range w.runtime.Containers {
		starting := w.ops[opContainer+c.Name] != nil
		if c.State == container.StateExited || c.State == container.StateCreated && (starting || w.stopped) {
			continue
		}
		cpus := w.resize.pinned[c.ID]
		if have, other := running[c.Name]; other && have != cpus {
			cpus = "" // of two instances the older one may be anywhere
		}
		running[c.Name] = cpus
	}
	w.m.deps.Builder.Placed(w.uid, running, func(name string) bool { return w.ops[opContainer+name] != nil || w.ops[opPin] != nil })
}
