package podworker_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/config"
)

// crashFixture are Pods whose kubelet crashes again and again.
type crashFixture struct {
	*fixture
	rand    *rand.Rand
	pods    map[string]*corev1.Pod
	exits   map[string]int32 // how often the Pod's container has ended by itself
	gone    []*corev1.Pod    // removed, and of this life, or found by it
	created int
}

// create adds a Pod; its container has the Pod's name, so that the fake runtime can find it.
func (l *crashFixture) create() {
	name := fmt.Sprintf("p%d", l.created)
	l.created++
	p := pod(name, func(p *corev1.Pod) { p.Spec.Containers[0].Name = name })
	l.pods[name] = p
	l.add(p)
}

// waitRunning waits until all Pods run, with as many restarts as their containers have ended.
func (l *crashFixture) waitRunning() {
	for name, p := range l.pods {
		l.waitFor(name+" runs", func() bool {
			l.clock.Step(time.Second)
			l.statuses.mu.Lock()
			defer l.statuses.mu.Unlock()
			s := l.statuses.last[p.UID]
			return running(s) && l.runtime.Running()[name] == 1 && s.ContainerStatuses[0].RestartCount >= l.exits[name]
		})
		l.statuses.mu.Lock()
		count := l.statuses.last[p.UID].ContainerStatuses[0].RestartCount
		l.statuses.mu.Unlock()
		require.Equal(l.t, l.exits[name], count, "restarts of %s", name)
	}
}

// crash stops the kubelet, with starts that are cut off in the moment before, and starts another one.
func (l *crashFixture) crash() {
	l.runtime.InterruptStarts(true)
	before, some := l.runtime.Calls("StartContainer"), l.rand.IntN(3)
	for range some {
		l.create()
	}
	if l.rand.IntN(4) > 0 { // or else it dies before it comes to that
		l.waitFor("starts", func() bool { return l.runtime.Calls("StartContainer") >= before+some })
	}
	l.stop()
	l.runtime.InterruptStarts(false)
	// The next life learns of those that were removed from their sandboxes. One that never had any is not the workers'
	// business: the volume manager finds its volumes.
	boxes, err := l.runtime.ListPodSandbox(l.t.Context(), &runtimeapi.ListPodSandboxRequest{})
	require.NoError(l.t, err)
	l.gone = slices.DeleteFunc(l.gone, func(p *corev1.Pod) bool {
		return !slices.ContainsFunc(boxes.Items, func(box *runtimeapi.PodSandbox) bool { return box.Metadata.Uid == string(p.UID) })
	})
	l.start()
	for _, p := range l.pods {
		l.statuses.mu.Lock()
		p.Status = l.statuses.last[p.UID]
		l.statuses.mu.Unlock()
		l.add(p)
	}
	l.manager.SourcesReady()
}

func (l *crashFixture) remove(name string) {
	p := deleted(l.pods[name])
	l.manager.HandlePod(config.Change{Op: config.Delete, Pod: p})
	l.manager.HandlePod(config.Change{Op: config.Remove, Pod: p})
	l.gone = append(l.gone, p)
	delete(l.pods, name)
}

// anyPod is one of the Pods, or "".
func (l *crashFixture) anyPod() string {
	for name := range l.pods {
		return name
	}
	return ""
}

func TestPodsSurviveKubeletCrashes(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			l := &crashFixture{
				fixture: newFixture(t), rand: rand.New(rand.NewPCG(seed, 7)), pods: map[string]*corev1.Pod{},
				exits: map[string]int32{},
			}
			for range 30 {
				name := l.anyPod()
				switch what := l.rand.IntN(10); {
				case what < 3 || name == "":
					l.create()
				case what < 6:
					l.crash()
				case what < 8:
					l.waitRunning()
					l.exits[name]++
					l.runtime.Exit(name, 1)
				default:
					l.remove(name)
				}
			}
			l.waitRunning()
			for _, p := range l.gone {
				l.waitFor(p.Name+" is gone with its volumes", func() bool {
					l.clock.Step(time.Second)
					return !l.manager.Has(p.UID) && !l.volumes.has(p.UID)
				})
			}
			l.waitFor("nothing is left of them", func() bool {
				l.clock.Step(time.Second)
				boxes, _ := l.runtime.Counts()
				return boxes == len(l.pods)
			})
		})
	}
}
