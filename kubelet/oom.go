package kubelet

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/kubelet/cadvisor"
)

// OOMWatcher records an event when the machine is out of memory and the kernel kills a process.
type OOMWatcher interface {
	// Start watches, and returns when that ends. The events are of ref, the Node.
	Start(ref *corev1.ObjectReference) error
}

type oomWatcher struct {
	machine  cadvisor.Interface
	recorder record.EventRecorder
}

// NewOOMWatcher returns an OOMWatcher. A process that is killed because of its own container's limit makes no event.
func NewOOMWatcher(machine cadvisor.Interface, recorder record.EventRecorder) OOMWatcher {
	return &oomWatcher{machine: machine, recorder: recorder}
}

// Start implements OOMWatcher.
func (w *oomWatcher) Start(ref *corev1.ObjectReference) error {
	if w.machine == nil || w.recorder == nil || ref == nil {
		return errors.New("watch OOM kills: a machine, a recorder and the node are required")
	}
	return cadvisor.RecordOOMKills(context.Background(), w.machine, w.recorder, ref)
}
