package kubelet

import (
	"fmt"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/kubelet/node"
)

// BirthCry tells the world by an event that the node agent has started.
func (k *Kubelet) BirthCry() {
	k.deps.Recorder.Event(node.Reference(k.cfg.NodeName), corev1.EventTypeNormal, "Starting", "Starting kubelet.")
}

// lateRecorder is a recorder that has nowhere to send events to before the node agent runs: a constructor starts
// nothing.
type lateRecorder struct {
	to atomic.Pointer[record.EventRecorder]
}

var _ record.EventRecorder = (*lateRecorder)(nil)

// Event implements record.EventRecorder.
func (r *lateRecorder) Event(object runtime.Object, kind, reason, message string) {
	if to := r.to.Load(); to != nil {
		(*to).Event(object, kind, reason, message)
	}
}

// Eventf implements record.EventRecorder.
func (r *lateRecorder) Eventf(object runtime.Object, kind, reason, format string, args ...any) {
	r.Event(object, kind, reason, fmt.Sprintf(format, args...))
}

// AnnotatedEventf implements record.EventRecorder.
func (r *lateRecorder) AnnotatedEventf(object runtime.Object, annotations map[string]string, kind, reason,
	format string, args ...any,
) {
	if to := r.to.Load(); to != nil {
		(*to).AnnotatedEventf(object, annotations, kind, reason, format, args...)
	}
}

// settleIn does for a Kubelet of NewMainKubelet what has to wait for its start: it protects the process from lack of
// memory, and sends events to where callers want them until the returned function is called.
func (k *Kubelet) settleIn() (leave func()) {
	in := k.face.injected
	if in == nil {
		return func() {}
	}
	if in.OOMAdjuster != nil {
		const score = -999 // after everything else, but before what must never be killed
		if err := in.OOMAdjuster.ApplyOOMScoreAdj(0, score); err != nil {
			k.deps.Logger.Warn("the node agent is not protected from lack of memory", "error", err)
		}
	}
	client := in.EventClient
	if client == nil && !k.deps.standalone {
		client = k.deps.Client.CoreV1()
	}
	if in.Recorder != nil || client == nil {
		return func() {}
	}
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.Events("")})
	recorder := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelet", Host: k.cfg.NodeName})
	var to record.EventRecorder = recorder
	k.face.events.to.Store(&to)
	return broadcaster.Shutdown
}
