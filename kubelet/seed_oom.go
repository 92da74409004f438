package kubelet

import (
	"context"
	"errors"

	v1 "github.com/google/cadvisor/info/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/kubelet/cadvisor"
	"github.com/berth-dev/berth/kubelet/node"
)

// OOMWatcher reports when the machine had no memory left and the kernel killed a process.
type OOMWatcher interface {
	// Start watches, and returns when that ends. Events are about ref, the Node.
	Start(ref *corev1.ObjectReference) error
}

// oomWatcher is the OOMWatcher. It watches until stop is called.
type oomWatcher struct {
	machine  cadvisor.Interface
	recorder record.EventRecorder
	life     context.Context
}

// NewOOMWatcher makes an OOMWatcher. A process killed because its own container had no memory left is no business of
// the node's, and makes no event.
func NewOOMWatcher(machine cadvisor.Interface, recorder record.EventRecorder) OOMWatcher {
	return &oomWatcher{machine: machine, recorder: recorder, life: newLifetime()}
}

// watchOOM is the node agent's own OOMWatcher. A node whose kernel does not tell works without.
func (k *Kubelet) watchOOM(ctx context.Context) error {
	watcher := &oomWatcher{machine: k.face.machine, recorder: k.deps.Recorder, life: ctx}
	if err := watcher.Start(node.Reference(k.cfg.NodeName)); err != nil && ctx.Err() == nil {
		k.deps.Logger.Warn("kills for lack of memory are not reported", "error", err)
	}
	return nil
}

// Start implements OOMWatcher.
func (w *oomWatcher) Start(ref *corev1.ObjectReference) error {
	if w.machine == nil || w.recorder == nil || ref == nil {
		return errors.New("watch kills for lack of memory: needs a machine, a recorder and the node")
	}
	return w.machine.WatchOOM(w.life, func(name string, killed v1.OomKillEventData) {
		if name == "/" {
			w.recorder.Eventf(ref, corev1.EventTypeWarning, "SystemOOM",
				"System OOM encountered, victim process: %s, pid: %d", killed.ProcessName, killed.Pid)
		}
	})
}
