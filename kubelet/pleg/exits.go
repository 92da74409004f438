package pleg

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ExitRecorder knows how containers ended whose exit code the runtime has lost.
type ExitRecorder interface {
	// Exit returns how a container ended, if that is known. It may wait while that is being found out, until ctx ends.
	Exit(ctx context.Context, containerID string) (code int32, finished time.Time, ok bool)
}

// The status that containerd's CRI reports for a container whose end it has not seen, and for one whose end it has.
const (
	unknownExitCode = 255
	unknownReason   = "Unknown"
	completedReason = "Completed"
	errorReason     = "Error"
)

// unknownMessage explains such a status.
const unknownMessage = "the container runtime was itself ended while this container ended, and its exit code was not recorded"

// restoreExitCode sets the exit code of a container whose end the runtime has lost. If it is not known, the status gets
// a message that explains why.
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
