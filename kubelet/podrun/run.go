package podrun

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/agent"
	"github.com/berth-dev/berth/kubelet/status"
)

// Node is the part of a kubelet that a Pod in the foreground needs. *agent.Agent is one.
type Node interface {
	Start(ctx context.Context) error
	SetStatic(pods []*corev1.Pod)
	Subscribe(fn func(status.Event)) (cancel func())
	FollowLog(ctx context.Context, uid types.UID, containerID string, stdout, stderr io.Writer) error
}

var _ Node = (*agent.Agent)(nil)

// Config holds the values of a run.
type Config struct {
	// Pod is as config.Decode made it.
	Pod *corev1.Pod
	// Detach returns as soon as all containers run, and leaves the Pod running.
	Detach bool
	// Remove only ends what is left of the Pod from an earlier, detached run.
	Remove bool
}

// Deps holds what a run needs; all are required.
type Deps struct {
	// Node runs the Pod. It is started here, and must have no other Pods.
	Node Node
	// Out and Err take what containers write, by whole lines.
	Out, Err io.Writer
	// Printf prints a message to the user. It may be called from several goroutines.
	Printf func(format string, args ...any)
}

// Result is how a Pod ended.
type Result struct {
	// Status is the last one known.
	Status corev1.PodStatus
	// ExitCode is that of the first container, in the order of the spec, that did not end with 0; 0 if all did.
	ExitCode int
	// Interrupted says that the run was ended from outside.
	Interrupted bool
	// Output is why what was written to Out and Err is incomplete, which Printf has said when it happened; nil if it is complete.
	Output error
}

// runner runs one Pod.
type runner struct {
	config Config
	deps   Deps

	mu        sync.Mutex // guards below
	last      corev1.PodStatus
	isRemoved bool
	unread    []error       // of logs that were not copied to their end
	change    chan struct{} // closed and replaced when one of them changes

	followers sync.WaitGroup
	followed  map[string]bool // container ids; belongs to the goroutine of watch
	restarts  map[string]int32
}

// Run runs the Pod until it ends, and then removes it; if ctx ends first, the Pod is stopped with its own grace and
// removed. Result.Interrupted says which of both it was. An error means that the result of the Pod is unknown.
func Run(ctx context.Context, config Config, deps Deps) (Result, error) {
	if config.Pod == nil || deps.Node == nil || deps.Out == nil || deps.Err == nil || deps.Printf == nil {
		return Result{}, errors.New("podrun: Config.Pod and all of Deps are required")
	}
	r := &runner{config: config, deps: deps, change: make(chan struct{}), followed: map[string]bool{}, restarts: map[string]int32{}}
	defer deps.Node.Subscribe(r.onPodEvent)()

	// The kubelet must outlive ctx, to stop the Pod in order.
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- contain.Do("podrun.Run", "", func() error { return deps.Node.Start(inner) }) }()
	result, err := r.run(ctx, inner, ended)
	stop()
	r.followers.Wait()
	result.Output = errors.Join(r.unread...)
	if errors.Is(err, errNodeEnded) {
		return result, err
	}
	return result, errors.Join(err, <-ended)
}

// errNodeEnded means that the kubelet has returned on its own.
var errNodeEnded = errors.New("the kubelet ended")

// run runs the Pod, waits for its end, and removes it.
func (r *runner) run(ctx, inner context.Context, ended chan error) (Result, error) {
	pods := []*corev1.Pod{r.config.Pod}
	r.deps.Node.SetStatic(pods)
	var result Result
	if !r.config.Remove {
		done, err := r.watch(ctx, inner, ended)
		if err != nil {
			return Result{Status: r.status()}, err
		}
		result = Result{Status: r.status(), Interrupted: !done}
		if done && r.config.Detach && !terminal(&result.Status) {
			return result, nil
		}
		if done {
			r.followers.Wait()
			result.ExitCode = exitCode(r.config.Pod, &result.Status)
		}
	}
	r.deps.Node.SetStatic(nil)
	for {
		gone, change := r.removed()
		if gone {
			return result, nil
		}
		select {
		case <-change:
		case err := <-ended:
			return result, fmt.Errorf("remove pod %q: %w: %w", r.config.Pod.Name, errNodeEnded, err)
		}
	}
}

// watch copies logs until the Pod has ended, or runs if Config.Detach is set, and returns true; false if ctx ends first.
func (r *runner) watch(ctx, inner context.Context, ended chan error) (bool, error) {
	for {
		status, change := r.next()
		r.follow(inner, &status)
		if terminal(&status) || r.config.Detach && running(r.config.Pod, &status) {
			return true, nil
		}
		select {
		case <-ctx.Done():
			r.deps.Printf("stopping pod %s (again to leave at once)", r.config.Pod.Name)
			return false, nil
		case <-change:
		case err := <-ended:
			return false, fmt.Errorf("run pod %q: %w: %w", r.config.Pod.Name, errNodeEnded, err)
		}
	}
}

// onPodEvent stores a change of the Pod.
func (r *runner) onPodEvent(event status.Event) {
	if event.UID != r.config.Pod.UID {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if event.Removed {
		r.isRemoved = true
	} else {
		r.last = event.Status
	}
	close(r.change)
	r.change = make(chan struct{})
}

func (r *runner) status() corev1.PodStatus {
	status, _ := r.next()
	return status
}

func (r *runner) next() (corev1.PodStatus, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last, r.change
}

func (r *runner) removed() (bool, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.isRemoved, r.change
}

// follow copies the log of each instance of a container that it has not seen before.
func (r *runner) follow(ctx context.Context, status *corev1.PodStatus) {
	if r.config.Detach {
		return
	}
	several := len(r.config.Pod.Spec.Containers)+len(r.config.Pod.Spec.InitContainers) > 1
	for c := range podutil.Statuses(status) {
		r.explainRestart(c)
		if started := c.State.Running != nil || c.State.Terminated != nil; !started || c.ContainerID == "" {
			continue
		}
		if r.followed[c.ContainerID] {
			continue
		}
		r.followed[c.ContainerID] = true
		prefix := ""
		if several {
			prefix = c.Name + " | "
		}
		out, errOut := newPrefixWriter(r.deps.Out, prefix), newPrefixWriter(r.deps.Err, prefix)
		id, name := c.ContainerID, c.Name
		r.followers.Go(contain.Guard("podrun.follow", "", func() {
			err := r.deps.Node.FollowLog(ctx, r.config.Pod.UID, id, out, errOut)
			if err = errors.Join(err, out.flush(), errOut.flush()); err != nil && ctx.Err() == nil {
				err = fmt.Errorf("log of container %s: %w", name, err)
				r.deps.Printf("%v", err)
				r.mu.Lock()
				r.unread = append(r.unread, err)
				r.mu.Unlock()
			}
		}))
	}
}

// explainRestart prints, once, why a container that has ended runs again.
func (r *runner) explainRestart(c *corev1.ContainerStatus) {
	before := r.restarts[c.Name]
	r.restarts[c.Name] = c.RestartCount
	last := c.LastTerminationState.Terminated
	if c.RestartCount <= before || before > 0 || last == nil {
		return
	}
	r.deps.Printf("container %s ended with exit code %d and is restarted because of the restart policy "+
		"(with restartPolicy: Never the pod ends)", c.Name, last.ExitCode)
}

func terminal(status *corev1.PodStatus) bool {
	return status.Phase == corev1.PodSucceeded || status.Phase == corev1.PodFailed
}

// running reports whether all containers of the Pod run.
func running(pod *corev1.Pod, status *corev1.PodStatus) bool {
	if len(status.ContainerStatuses) < len(pod.Spec.Containers) {
		return false
	}
	for i := range status.ContainerStatuses {
		if status.ContainerStatuses[i].State.Running == nil {
			return false
		}
	}
	return true
}

// exitCode returns the exit code of the Pod as a whole.
func exitCode(pod *corev1.Pod, status *corev1.PodStatus) int {
	code := func(list []corev1.ContainerStatus, name string) int32 {
		for i := range list {
			if t := list[i].State.Terminated; t != nil && list[i].Name == name {
				return t.ExitCode
			}
		}
		return 0
	}
	for i := range pod.Spec.Containers {
		if c := code(status.ContainerStatuses, pod.Spec.Containers[i].Name); c != 0 {
			return int(c)
		}
	}
	if status.Phase != corev1.PodFailed {
		return 0
	}
	for i := range pod.Spec.InitContainers {
		if c := code(status.InitContainerStatuses, pod.Spec.InitContainers[i].Name); c != 0 {
			return int(c)
		}
	}
	return 1 // the Pod failed, and no container, as by its deadline
}

// Explain returns in one line why a Pod failed as a whole, and "" if one of its containers has failed.
func Explain(status *corev1.PodStatus) string {
	if status.Phase != corev1.PodFailed || status.Reason == "" && status.Message == "" {
		return ""
	}
	return strings.TrimPrefix(status.Reason+": "+status.Message, ": ")
}
