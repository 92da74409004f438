package pleg

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ExitRecorder tells how containers ended whose end the runtime has lost.
type ExitRecorder interface {
	// Exit says how a container ended, if that is known. It may wait while it is being found out, as long as ctx lives.
	Exit(ctx context.Context, containerID string) (code int32, finished time.Time, ok bool)
}

// What containerd's CRI says of a container whose end it has not seen, and of ends that it has seen.
const (
	unknownExitCode = 255
	unknownReason   = "Unknown"
	completedReason = "Completed"
	errorReason     = "Error"
)

// unknownMessage is the answer to the question that such a status leaves open.
const unknownMessage = "the container runtime was itself ended while this container ended, and nobody else saw with which code"

// restoreExitCode puts the real end into the status of a container that the runtime lost the end of. If nobody knows it, the
// status says what happened instead of nothing.
func (w *Watcher) restoreExitCode(ctx context.Context, c *runtimeapi.ContainerStatus) {
	if c.State != runtimeapi.ContainerState_CONTAINER_EXITED || c.StartedAt == 0 || c.ExitCode != unknownExitCode || c.Reason != unknownReason {
		return
	}
	if w.deps.Exits != nil {
		if code, finished, ok := w.deps.Exits.Exit(ctx, c.Id); ok {
			c.ExitCode, c.FinishedAt, c.Reason = code, finished.UnixNano(), errorReason
			if code == 0 {
				c.Reason = completedReason
			}
			return
		}
	}
	if c.Message == "" {
		c.Message = unknownMessage
	}
}
