package logs

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Options say what part of a log is read, and how.
type Options struct {
	// Follow goes on reading what is written until Done is closed.
	Follow bool
	// Done is closed when the container has ended: what is in the file by then is all there will be. A follower
	// without Done goes on until its context ends.
	Done <-chan struct{}
	// TailLines is how many lines, counted from the end, are read at most; nil reads all.
	TailLines *int64
	// LimitBytes is how many bytes are written at most; nil knows no limit.
	LimitBytes *int64
	// Since leaves out what was written before; the zero time leaves out nothing.
	Since time.Time
	// Timestamps puts the time in front of every line.
	Timestamps bool
}

// FromPodLogOptions converts the options of a request that came in at now. Which container and whether its previous
// instance is meant is [ContainerIDFor]'s business.
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
			return Options{}, fmt.Errorf("read sinceSeconds %d: has to be greater than 0", *o.SinceSeconds)
		}
		opts.Since = now.Add(-time.Duration(*o.SinceSeconds) * time.Second)
	case o.SinceTime != nil:
		opts.Since = o.SinceTime.Time
	}
	if o.TailLines != nil && *o.TailLines < 0 {
		return Options{}, fmt.Errorf("read tailLines %d: has to be 0 or more", *o.TailLines)
	}
	if o.LimitBytes != nil && *o.LimitBytes < 1 {
		return Options{}, fmt.Errorf("read limitBytes %d: has to be greater than 0", *o.LimitBytes)
	}
	return opts, nil
}

// ContainerIDFor returns the runtime id ("containerd://…" as it stands in the status) of the container instance whose log is
// asked for: the one that runs or ran last, or with previous the one before it. An error says why there is none.
func ContainerIDFor(podName string, status *corev1.PodStatus, name string, previous bool) (string, error) {
	s := findStatus(status, name)
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
		return last.ContainerID, nil // the next one has not started, or never will
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

func findStatus(status *corev1.PodStatus, name string) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{
		status.ContainerStatuses, status.InitContainerStatuses, status.EphemeralContainerStatuses,
	} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
