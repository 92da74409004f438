package provision

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// startEvents returns the recorder that events go to, and a function that ends it. Events are written in
// the background; the ones not written when it ends are lost.
func (ctrl *ProvisionController) startEvents(ctx context.Context) (record.EventRecorder, func()) {
	if r := ctrl.settings.recorder; r != nil {
		return r, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: ctrl.client.CoreV1().Events("")})
	recorder := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{
		Component: ctrl.provisionerName + "_" + ctrl.identity,
	})
	return recorder, func() {
		broadcaster.Shutdown()
		cancel() // an event that waits to be written again waits no more
	}
}
