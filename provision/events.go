package provision

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/eventsink"
)

// startEvents returns the recorder of the controller's events, and a function that writes those that are left and ends it.
// Warnings are written at once, other events when no claim waits for the writes that bind it: after half a second all the same, but for
// those that say of a volume that it exists, which the API shows already.
func (ctrl *ProvisionController) startEvents(
	ctx context.Context, gate *bindGate,
) (recorder record.EventRecorder, stop func(), err error) {
	s := &ctrl.settings
	if s.recorder != nil {
		return s.recorder, func() {}, nil
	}
	recorder, stop, err = eventsink.StartRecorder(ctx, eventsink.Deps{
		Client: ctrl.client.CoreV1(), Clock: s.clock, Logger: s.logger.With("provisioner", ctrl.provisionerName),
		Yield: gate.yieldEvent,
		Late: &eventsink.Late{
			Is:    func(event *corev1.Event) bool { return event.Reason == reasonProvisioningOK },
			Yield: func(ctx context.Context, since time.Time) { gate.yield(ctx, since) },
		},
	}, eventsink.Config{}, corev1.EventSource{Component: ctrl.provisionerName + "_" + ctrl.identity})
	if err != nil {
		return nil, nil, fmt.Errorf("start event recorder: %w", err)
	}
	return recorder, stop, nil
}
