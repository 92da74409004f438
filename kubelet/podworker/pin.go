package podworker

import (
	"context"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
)

const opPin = "pin"

// pinContainers starts to move running containers to the CPUs that are theirs now.
func (w *worker) pinContainers(ctx context.Context, pins []kuberuntime.Resize) {
	var todo []kuberuntime.Resize
	for _, change := range pins {
		// A runtime may report other CPUs than were set; setting them again would change nothing.
		if set, asked := w.resize.pinned[change.Status.ID]; !asked || set != change.Want.CpusetCpus {
			todo = append(todo, change)
		}
	}
	if len(todo) == 0 || w.ops[opPin] != nil || w.backingOff(opPin) {
		return
	}
	w.startOp(ctx, opPin, op{}, func(ctx context.Context) func() {
		done, err := pin(ctx, w.m.deps.Runtime, todo)
		return func() {
			for _, change := range done {
				w.resize.pinned[change.Status.ID] = change.Want.CpusetCpus
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

// pinWhileStopping moves the containers of a Pod that is being stopped to other CPUs, where a new container is to have theirs.
func (w *worker) pinWhileStopping(ctx context.Context) {
	if w.ops[opStop] == nil {
		return
	}
	var pins []kuberuntime.Resize
	for _, s := range w.runtime.Containers {
		c, _ := podutil.FindContainer(&w.pod.Spec, s.Name)
		if c == nil || s.State != container.StateRunning || s.Resources.GetLinux() == nil {
			continue
		}
		if move := kuberuntime.Move(c, s, w.m.deps.Builder.Resources(w.pod, c).GetCpusetCpus()); move != nil {
			pins = append(pins, *move)
		}
	}
	w.pinContainers(ctx, pins)
}

// recordPlaces passes on which CPUs the running containers are on.
func (w *worker) recordPlaces() {
	running := map[string]string{}
	for _, c := range w.runtime.Containers {
		if c.State != container.StateRunning {
			continue
		}
		set, pinned := w.resize.pinned[c.ID]
		if !pinned { // else a runtime may report other CPUs than were set
			set = c.Resources.GetLinux().GetCpusetCpus()
		}
		running[c.Name] = set
	}
	w.m.deps.Builder.Placed(w.uid, running, func(name string) bool { return w.ops[opContainer+name] != nil })
}

// pin changes the CPUs of containers. It returns those that have changed.
func pin(ctx context.Context, runtime Runtime, todo []kuberuntime.Resize) (done []kuberuntime.Resize, err error) {
	for _, change := range todo {
		_, err := runtime.UpdateContainerResources(uncancelled(ctx), &runtimeapi.UpdateContainerResourcesRequest{
			ContainerId: change.Status.ID, Linux: change.Want,
		})
		if ignoreNotFound(err) != nil {
			return done, fmt.Errorf("move container %q to CPUs %s: %w", change.Container.Name, change.Want.CpusetCpus, err)
		}
		done = append(done, change)
	}
	return done, nil
}
