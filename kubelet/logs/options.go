package logs

import (
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
)

// Options select the part of a log that is read, and its format.
type Options struct {
	// Follow continues reading until Done is closed.
	Follow bool
	// Done is closed when the container has ended: the log is complete then. Without Done a follower continues until
	// its context ends.
	Done <-chan struct{}
	// TailLines is the maximum number of lines, counted from the end; nil means all.
	TailLines *int64
	// LimitBytes is the maximum number of bytes; nil means no limit.
	LimitBytes *int64
	// Since omits older lines; the zero time omits none.
	Since time.Time
	// Timestamps writes the time before every line.
	Timestamps bool
}

// FromPodLogOptions converts the options of a request that was received at now. [ContainerIDFor] selects the container
// and its instance.
func FromPodLogOptions(o *corev1.PodLogOptions, now time.Time) (Options, error) {
	if o == nil {
		return Options{}, nil
	}
	opts := Options{Follow: o.Follow, TailLines: o.TailLines, LimitBytes: o.LimitBytes, Timestamps: o.Timestamps}
	switch {
	case o.SinceSeconds != nil && o.SinceTime != nil:
		return Options{}, fmt.Errorf("read log options: at most one of sinceTime and sinceSeconds may be given")
	case o.SinceSeconds != nil:
		if *o.SinceSeconds < 1 {
			return Options{}, fmt.Errorf("read sinceSeconds %d: must be greater than 0", *o.SinceSeconds)
		}
		opts.Since = now.Add(-time.Duration(min(*o.SinceSeconds, int64(math.MaxInt64/time.Second))) * time.Second)
	case o.SinceTime != nil:
		opts.Since = o.SinceTime.Time
	}
	if o.TailLines != nil && *o.TailLines < 0 {
		return Options{}, fmt.Errorf("read tailLines %d: must not be negative", *o.TailLines)
	}
	if o.LimitBytes != nil && *o.LimitBytes < 1 {
		return Options{}, fmt.Errorf("read limitBytes %d: must be greater than 0", *o.LimitBytes)
	}
	return opts, nil
}

// ContainerIDFor returns the id ("containerd://…" as in the status) of the container instance whose log is requested:
// the one that runs or ran last, or with previous the one before it. An error says why there is none.
func ContainerIDFor(podName string, status *corev1.PodStatus, name string, previous bool) (string, error) {
	s := podutil.FindStatusOfAny(status, name)
	if s == nil {
		return "", fmt.Errorf("container %q in pod %q is not available", name, podName)
	}
	last := s.LastTerminationState.Terminated
	if previous {
		if last == nil || last.ContainerID == "" {
			return "", fmt.Errorf("previous terminated container %q in pod %q not found", name, podName)
		}
		return last.ContainerID, nil
	}
	switch now := s.State.Terminated; {
	case s.State.Running != nil:
		return s.ContainerID, nil
	case now != nil && now.ContainerID != "":
		return now.ContainerID, nil
	case last != nil && last.ContainerID != "":
		return last.ContainerID, nil // the next one has not started yet, or never will
	case now != nil || last != nil:
		return "", fmt.Errorf("container %q in pod %q is terminated", name, podName)
	case s.State.Waiting == nil:
		return "", fmt.Errorf("container %q in pod %q is waiting to start - no logs yet", name, podName)
	}
	reason := s.State.Waiting.Reason
	switch reason {
	case "ErrImagePull":
		reason = "image can't be pulled"
	case "ImagePullBackOff":
		reason = "trying and failing to pull image"
	}
	return "", fmt.Errorf("container %q in pod %q is waiting to start: %s", name, podName, reason)
}
