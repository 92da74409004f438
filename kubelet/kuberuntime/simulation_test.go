package kuberuntime

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/container"
)

// simulation plays the runtime, the misfortunes, and a kubelet that is killed between any two of its steps. It keeps
// account of its own of what has happened, to which every start is held.
type simulation struct {
	t       *testing.T
	rand    *rand.Rand
	pod     *corev1.Pod
	status  *container.PodStatus
	backoff *Backoff
	now     time.Time
	ids     int
	calm    bool // no more misfortunes: whatever runs succeeds

	started   map[string]uint32          // the highest attempt that ever ran, by container
	succeeded map[string]map[string]bool // regular inits that succeeded, by sandbox
	up        map[string]map[string]bool // sidecars that were started, by sandbox
}

func newSimulation(t *testing.T, seed uint64, policy corev1.RestartPolicy) *simulation {
	return &simulation{
		t: t, rand: rand.New(rand.NewPCG(seed, 7)), now: epoch.Add(time.Hour), backoff: NewBackoff(0),
		pod:    podOf(policy, "side:s1", "init:i1", "side:s2", "init:i2", "a", "b"),
		status: &container.PodStatus{UID: "u1"}, started: map[string]uint32{},
		succeeded: map[string]map[string]bool{}, up: map[string]map[string]bool{},
	}
}

func (w *simulation) chance(percent int) bool { return !w.calm && w.rand.IntN(100) < percent }

// step lets the kubelet look once and carry out what it finds, or a part of it. It says whether the Pod is over.
func (w *simulation) step() bool {
	w.now = w.now.Add(time.Second)
	actions := ComputeActions(w.pod, w.status, Inputs{Now: w.now, Backoff: w.backoff, LastAttempt: w.lastAttempt})
	if actions.KillPod {
		for _, c := range w.status.Running() {
			w.exit(c, 137)
		}
		for _, s := range w.status.Sandboxes {
			s.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
		}
	}
	if actions.Finished {
		return true
	}
	for _, k := range actions.Kill {
		if w.chance(5) {
			return false
		}
		w.exit(k.Status, 137)
	}
	for _, r := range actions.Remove {
		if w.chance(5) {
			return false
		}
		w.status.Containers = slices.DeleteFunc(w.status.Containers, func(c *container.ContainerStatus) bool { return c == r })
	}
	if w.chance(5) {
		return false
	}
	id := actions.SandboxID
	if actions.CreateSandbox {
		w.ids++
		id = fmt.Sprintf("sandbox-%d", w.ids)
		w.status.Sandboxes = append([]*runtimeapi.PodSandboxStatus{{
			Id: id, CreatedAt: w.now.UnixNano(), Metadata: &runtimeapi.PodSandboxMetadata{Attempt: actions.Attempt},
			Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.1"},
		}}, w.status.Sandboxes...)
		w.succeeded[id], w.up[id] = map[string]bool{}, map[string]bool{}
	}
	for _, s := range actions.Start {
		if w.chance(5) {
			return false
		}
		if !w.start(s, id) {
			return false
		}
	}
	if len(actions.Start) == 0 && !actions.NextSync.IsZero() {
		w.now = actions.NextSync
	}
	return false
}

// start makes a container and starts it. It says whether the kubelet has lived through that.
func (w *simulation) start(s Start, sandboxID string) bool {
	name := s.Container.Name
	require.Equal(w.t, sandboxID, w.status.LatestSandbox().Id)
	for _, c := range w.status.Running() {
		require.NotEqual(w.t, name, c.Name, "two instances run at once")
	}
	if highest, ran := w.started[name]; ran {
		require.Equal(w.t, highest+1, s.Attempt, "restart count of %s", name)
	} else {
		require.Zero(w.t, s.Attempt, "first instance of %s", name)
	}
	w.checkStartOrder(s, sandboxID)
	w.backoff.Started(w.pod.UID, s.BackoffKey, s.BackoffSince, w.now)
	w.ids++
	w.now = w.now.Add(time.Millisecond)
	instance := &container.ContainerStatus{
		ID: fmt.Sprintf("c-%d", w.ids), Name: name, State: container.StateCreated, CreatedAt: w.now, Attempt: s.Attempt,
		SpecHash: HashContainer(s.Container),
	}
	w.status.Containers = append([]*container.ContainerStatus{instance}, w.status.Containers...)
	if w.chance(5) {
		return false
	}
	instance.State = container.StateRunning
	w.started[name] = s.Attempt
	if podutil.IsSidecar(s.Container, s.Kind) {
		w.up[sandboxID][name] = true
	}
	return true
}

// checkStartOrder holds a start to the order of the spec, within one sandbox.
func (w *simulation) checkStartOrder(s Start, sandboxID string) {
	before := w.pod.Spec.InitContainers
	if s.Kind == podutil.Init {
		before = before[:s.Index]
		require.False(w.t, w.succeeded[sandboxID][s.Container.Name], "%s has done its work", s.Container.Name)
	}
	for i := range before {
		if podutil.IsSidecar(&before[i], podutil.Init) {
			require.True(w.t, w.up[sandboxID][before[i].Name], "%s before %s", s.Container.Name, before[i].Name)
		} else {
			require.True(w.t, w.succeeded[sandboxID][before[i].Name], "%s before %s", s.Container.Name, before[i].Name)
		}
	}
}

func (w *simulation) exit(c *container.ContainerStatus, code int32) {
	c.State, c.ExitCode, c.FinishedAt = container.StateExited, code, w.now
	if sandbox := w.status.LatestSandbox(); code == 0 && c.Name[0] == 'i' {
		w.succeeded[sandbox.Id][c.Name] = true
	}
}

// injectFault lets things happen that the kubelet did not ask for.
func (w *simulation) injectFault() {
	for _, c := range w.status.Running() {
		sidecar := c.Name[0] == 's'
		switch {
		case w.calm:
			if !sidecar {
				w.exit(c, 0)
			}
		case w.chance(30):
			w.exit(c, int32(w.rand.IntN(2)))
		case w.chance(3):
			c.State = container.StateUnknown
		}
	}
	if sandbox := w.status.LatestSandbox(); sandbox != nil && w.chance(4) {
		sandbox.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
		for _, c := range w.status.Running() {
			w.exit(c, 137)
		}
	}
	if w.chance(20) { // the garbage collector keeps the newest instance of each container
		seen := map[string]bool{}
		w.status.Containers = slices.DeleteFunc(w.status.Containers, func(c *container.ContainerStatus) bool {
			old := seen[c.Name] && c.State == container.StateExited
			seen[c.Name] = true
			return old
		})
	}
}

func (w *simulation) lastAttempt(name string) (uint32, bool) {
	n, ok := w.started[name]
	return n, ok
}

// TestRandomPodLifecycles lets many Pods live through misfortunes and a kubelet that keeps dying, and checks that no start breaks a
// promise: one instance at a time, counts without gaps, the order of the spec. When the misfortunes end, every Pod
// whose policy lets it end does so, and every other one runs.
func TestRandomPodLifecycles(t *testing.T) {
	for _, policy := range []corev1.RestartPolicy{"Always", "OnFailure", "Never"} {
		t.Run(string(policy), func(t *testing.T) {
			for seed := range uint64(300) {
				w := newSimulation(t, seed, policy)
				over := false
				for range 150 {
					if over = w.step(); over {
						break
					}
					w.injectFault()
				}
				w.calm = true
				for range 200 {
					if over {
						break
					}
					if over = w.step(); !over && policy != corev1.RestartPolicyAlways {
						w.injectFault()
					}
					if policy == corev1.RestartPolicyAlways && !over {
						w.endInits()
					}
				}
				if policy == corev1.RestartPolicyAlways {
					require.False(t, over, "seed %d", seed)
					require.Len(t, w.status.Running(), 4, "seed %d: both sidecars and both mains run", seed)
				} else {
					require.True(t, over, "seed %d", seed)
				}
				require.Empty(t, slices.DeleteFunc(w.status.Running(), func(*container.ContainerStatus) bool { return !over }),
					"nothing runs in a Pod that is over")
			}
		})
	}
}

// endInits lets the regular init containers succeed.
func (w *simulation) endInits() {
	for _, c := range w.status.Running() {
		if c.Name[0] == 'i' {
			w.exit(c, 0)
		}
	}
}
