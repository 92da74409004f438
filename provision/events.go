package provision

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/internal/eventsink"
)

// startEvents returns the recorder of the controller's events, and a function that writes those that are left and ends it.
// Warnings are written at once, other events when no claim waits for the writes that bind it.
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
	}, eventsink.Config{}, corev1.EventSource{Component: ctrl.provisionerName + "_" + ctrl.identity})
	if err != nil {
		return nil, nil, fmt.Errorf("start event recorder: %w", err)
	}
	return recorder, stop, nil
}
