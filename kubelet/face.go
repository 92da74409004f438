package kubelet

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	v1 "github.com/google/cadvisor/info/v1"
	corev1 "k8s.io/api/core/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/cadvisor"
	"github.com/berth-dev/berth/kubelet/lifecycle"
	"github.com/berth-dev/berth/kubelet/network"
	"github.com/berth-dev/berth/kubelet/podworker"
	"github.com/berth-dev/berth/kubelet/server"
	"github.com/berth-dev/berth/kubelet/status"
)

const (
	// handlersPeriod is how often PodSyncLoopHandlers are asked, whose contract has no event.
	handlersPeriod = 10 * time.Second
	// networkPluginsPeriod is how often NetworkPlugins are asked for their Status, for the same reason.
	networkPluginsPeriod = 30 * time.Second
)

// face is what the names of the seed need beside the rooms. All fields but life and loop are set before Start.
type face struct {
	configuration kubeletconfig.KubeletConfiguration
	injected      *KubeletDeps
	// fed says that Pods come through Run and RunOnce, and from no other source.
	fed      bool
	admits   []lifecycle.PodAdmitHandler
	networks []network.NetworkPlugin
	machine  cadvisor.Interface
	auth     *server.Auth
	// ownScore sets the node agent's own out-of-memory score; nil leaves it.
	ownScore func() error
	life     *lifetime
	// events takes events where callers have given a place for them, but no recorder.
	events *lateRecorder
	// info is what the machine has, read once.
	info *machineInfo
	// loop is when a source was last heard, in nanoseconds of the epoch.
	loop *atomic.Int64
}

func newFace() face {
	return face{machine: cadvisor.NewLocal(nil), life: newLifetime(), loop: &atomic.Int64{}, info: &machineInfo{},
		events: &lateRecorder{}}
}

type machineInfo struct {
	mu   sync.Mutex
	info *v1.MachineInfo
}

// machineInfo reads what the machine has, once.
func (f *face) machineInfo() (*v1.MachineInfo, error) {
	f.info.mu.Lock()
	defer f.info.mu.Unlock()
	if f.info.info != nil {
		return f.info.info, nil
	}
	info, err := f.machine.MachineInfo()
	if err != nil {
		return nil, err
	}
	f.info.info = info
	return info, nil
}

// looped notes that a source was heard.
func (f *face) looped(now time.Time) { f.loop.Store(now.UnixNano()) }

// admitter asks the handlers of callers after the node agent's own.
func (f *face) admitter(own podworker.Admitter) podworker.Admitter { return &admitters{own, f} }

type admitters struct {
	podworker.Admitter
	face *face
}

// Admit implements podworker.Admitter.
func (a *admitters) Admit(pod *corev1.Pod, others []*corev1.Pod) *status.Failure {
	if failure := a.Admitter.Admit(pod, others); failure != nil {
		return failure
	}
	for _, handler := range a.face.admits {
		result := handler.Admit(&lifecycle.PodAdmitAttributes{Pod: pod, OtherPods: others})
		if !result.Admit {
			return rejected(result.Reason, "%s", result.Message)
		}
	}
	return nil
}

// extend asks callers' handlers and plugins what they think, until ctx ends.
func (k *Kubelet) extend(ctx context.Context) error {
	if len(k.PodSyncHandlers) > 0 {
		defer k.Subscribe(func(r Report) { k.evict(r) })()
	}
	loops, networks := make(<-chan time.Time), make(<-chan time.Time)
	if len(k.PodSyncLoopHandlers) > 0 || len(k.PodSyncHandlers) > 0 {
		ticker := k.deps.Clock.NewTicker(handlersPeriod)
		defer ticker.Stop()
		loops = ticker.C()
	}
	if len(k.face.networks) > 0 {
		ticker := k.deps.Clock.NewTicker(networkPluginsPeriod)
		defer ticker.Stop()
		networks = ticker.C()
		k.askNetworks()
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-loops:
			k.askHandlers()
		case <-networks:
			k.askNetworks()
		}
	}
}

// askHandlers wakes the Pods that callers' handlers want to be looked at, and ends those they want to be ended.
func (k *Kubelet) askHandlers() {
	for _, pod := range k.workers.Pods() {
		k.judge(pod)
		if k.ShouldSync(pod) {
			k.workers.Wake(pod.UID)
		}
	}
}

// evict asks the handlers about a Pod to which something has happened.
func (k *Kubelet) evict(news Report) {
	if news.Gone || podutil.IsTerminal(&news.Status) {
		return
	}
	for _, pod := range k.workers.Pods() {
		if pod.UID == news.UID {
			k.judge(pod)
		}
	}
}

func (k *Kubelet) judge(pod *corev1.Pod) {
	if verdict := k.ShouldEvict(pod); verdict.Evict {
		k.workers.Evict(pod.UID, status.Failure{Reason: verdict.Reason, Message: verdict.Message}, nil)
	}
}

// askNetworks makes the node ready or not as the network plugins say.
func (k *Kubelet) askNetworks() {
	for _, plugin := range k.face.networks {
		err := plugin.Status()
		if err != nil {
			err = fmt.Errorf("network plugin %q: %w", plugin.Name(), err)
		}
		k.node.SetNotReady("network plugin "+plugin.Name(), err)
	}
}

// lifetime is the context of calls that are not given one: those of the seed's methods. It ends when Run does, or with
// Close.
type lifetime struct {
	done chan struct{}
	once sync.Once
}

var _ context.Context = (*lifetime)(nil)

func newLifetime() *lifetime { return &lifetime{done: make(chan struct{})} }

func (l *lifetime) end() { l.once.Do(func() { close(l.done) }) }

// Deadline implements context.Context: there is none.
func (l *lifetime) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements context.Context.
func (l *lifetime) Done() <-chan struct{} { return l.done }

// Err implements context.Context.
func (l *lifetime) Err() error {
	select {
	case <-l.done:
		return context.Canceled
	default:
		return nil
	}
}

// Value implements context.Context: there are none.
func (l *lifetime) Value(any) any { return nil }
