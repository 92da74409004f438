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

// Config says what is run and how.
type Config struct {
	// Pod is as config.Decode made it.
	Pod *corev1.Pod
	// Detach returns as soon as all containers run, and leaves the Pod running.
	Detach bool
	// Remove only ends what is left of the Pod from an earlier, detached run.
	Remove bool
}

// Deps are what a run needs from others. All are needed.
type Deps struct {
	// Node runs the Pod. It is started here, and must have no other Pods.
	Node Node
	// Out and Err get what containers write, each line as a whole.
	Out, Err io.Writer
	// Printf gets what a person should know of the run, a line at a time. It may be called from several goroutines.
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
}

// run is one run under way.
type run struct {
	cfg  Config
	deps Deps

	mu     sync.Mutex // guards below
	last   corev1.PodStatus
	gone   bool
	change chan struct{} // closed and replaced when one of them changes

	followers sync.WaitGroup
	followed  map[string]bool // container ids; belongs to the goroutine of watch
	restarts  map[string]int32
}

// Run runs the Pod until it ends, and then removes it; if ctx ends first, the Pod is stopped with its own grace and
// removed. Which of both it was stands in the result. An error means that it is not known how the Pod fared.
func Run(ctx context.Context, cfg Config, deps Deps) (Result, error) {
	if cfg.Pod == nil || deps.Node == nil || deps.Out == nil || deps.Err == nil || deps.Printf == nil {
		return Result{}, errors.New("run pod: Config.Pod and all of Deps are needed")
	}
	r := &run{cfg: cfg, deps: deps, change: make(chan struct{}), followed: map[string]bool{}, restarts: map[string]int32{}}
	defer deps.Node.Subscribe(r.report)()

	// The node agent must outlive ctx, to stop the Pod in order.
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- deps.Node.Start(inner) }()
	result, err := r.drive(ctx, inner, ended)
	stop()
	r.followers.Wait()
	if errors.Is(err, errNodeEnded) {
		return result, err
	}
	return result, errors.Join(err, <-ended)
}

// errNodeEnded says that the node agent has returned although nobody asked it to.
var errNodeEnded = errors.New("the node agent ended")

// drive takes the Pod through its life.
func (r *run) drive(ctx, inner context.Context, ended chan error) (Result, error) {
	pods := []*corev1.Pod{r.cfg.Pod}
	r.deps.Node.SetStatic(pods)
	var result Result
	if !r.cfg.Remove {
		done, err := r.watch(ctx, inner, ended)
		if err != nil {
			return Result{Status: r.status()}, err
		}
		result = Result{Status: r.status(), Interrupted: !done}
		if done && r.cfg.Detach && !terminal(&result.Status) {
			return result, nil
		}
		if done {
			r.followers.Wait()
			result.ExitCode = exitCode(r.cfg.Pod, &result.Status)
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
			return result, fmt.Errorf("remove pod %q: %w: %w", r.cfg.Pod.Name, errNodeEnded, err)
		}
	}
}

// watch shows logs until the Pod has ended, or runs if that is enough, or ctx ends; it reports whether not the last.
func (r *run) watch(ctx, inner context.Context, ended chan error) (bool, error) {
	for {
		status, change := r.next()
		r.follow(inner, &status)
		if terminal(&status) || r.cfg.Detach && running(r.cfg.Pod, &status) {
			return true, nil
		}
		select {
		case <-ctx.Done():
			r.deps.Printf("stopping pod %s (again to leave at once)", r.cfg.Pod.Name)
			return false, nil
		case <-change:
		case err := <-ended:
			return false, fmt.Errorf("run pod %q: %w: %w", r.cfg.Pod.Name, errNodeEnded, err)
		}
	}
}

// report takes news from the node agent.
func (r *run) report(news status.Event) {
	if news.UID != r.cfg.Pod.UID {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if news.Removed {
		r.gone = true
	} else {
		r.last = news.Status
	}
	close(r.change)
	r.change = make(chan struct{})
}

func (r *run) status() corev1.PodStatus {
	status, _ := r.next()
	return status
}

func (r *run) next() (corev1.PodStatus, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last, r.change
}

func (r *run) removed() (bool, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gone, r.change
}

// follow shows the log of each instance of a container that it has not seen before.
func (r *run) follow(ctx context.Context, status *corev1.PodStatus) {
	if r.cfg.Detach {
		return
	}
	several := len(r.cfg.Pod.Spec.Containers)+len(r.cfg.Pod.Spec.InitContainers) > 1
	for _, list := range [][]corev1.ContainerStatus{status.InitContainerStatuses, status.ContainerStatuses} {
		for i := range list {
			c := &list[i]
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
			out, errOut := newPrefixed(r.deps.Out, prefix), newPrefixed(r.deps.Err, prefix)
			id, name := c.ContainerID, c.Name
			r.followers.Go(func() {
				err := r.deps.Node.FollowLog(ctx, r.cfg.Pod.UID, id, out, errOut)
				if err = errors.Join(err, out.flush(), errOut.flush()); err != nil && ctx.Err() == nil {
					r.deps.Printf("log of container %s: %v", name, err)
				}
			})
		}
	}
}

// explainRestart tells, once, why a container runs again that a person may have thought to be done.
func (r *run) explainRestart(c *corev1.ContainerStatus) {
	before := r.restarts[c.Name]
	r.restarts[c.Name] = c.RestartCount
	last := c.LastTerminationState.Terminated
	if c.RestartCount <= before || before > 0 || last == nil {
		return
	}
	r.deps.Printf("container %s ended with exit code %d and is started again, as its restart policy says "+
		"(restartPolicy: Never lets the pod end)", c.Name, last.ExitCode)
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

// exitCode is the code by which a program that is the Pod would end.
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
	return 1 // failed as a whole, as by its deadline
}

// Explain says in a line why a Pod failed that no container's exit code tells, or nothing.
func Explain(status *corev1.PodStatus) string {
	if status.Phase != corev1.PodFailed || status.Reason == "" && status.Message == "" {
		return ""
	}
	return strings.TrimPrefix(status.Reason+": "+status.Message, ": ")
}
