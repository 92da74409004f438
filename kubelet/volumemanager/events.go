package volumemanager

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// The reasons of events.
const (
	reasonFailedMount         = "FailedMount"
	reasonFailedMap           = "FailedMapVolume"
	reasonFailedUnmount       = "FailedUnmount"
	reasonOwnershipInProgress = "VolumePermissionChangeInProgress"
	reasonOwnershipRefused    = "VolumePermissionChangeRefused"
	reasonMemoryOnDisk        = "PossibleMemoryBackedVolumesOnDisk"
)

// eventRepeatInterval is after how long the same failure of the same volume causes an event again.
const eventRepeatInterval = 5 * time.Minute

// reportFailure writes an event about a failure of a volume, unless the last event about it had the same message and is
// recent.
func (m *Manager) reportFailure(state *podState, name, reason, message string) {
	now := m.clock.Now()
	m.mu.Lock()
	last := state.lastEvents[name]
	skip := last.message == message && now.Sub(last.at) < eventRepeatInterval
	if !skip {
		state.lastEvents[name] = lastEvent{message: message, at: now}
	}
	pod := state.pod
	m.mu.Unlock()
	if pod != nil && m.deps.OnFailure != nil {
		m.deps.OnFailure(pod.UID)
	}
	if !skip && pod != nil {
		m.deps.Recorder.Event(pod, corev1.EventTypeWarning, reason, message)
	}
}

// remedy returns what the user can do about an error of the kernel, empty if that is unknown.
func remedy(err error) string {
	switch {
	case errors.Is(err, unix.EPERM):
		return " (is a directory on the path immutable? lsattr -d shows it, chattr -i removes the flag)"
	case errors.Is(err, unix.EROFS):
		return " (the file system is read-only: the kernel's log, dmesg, has the reason)"
	case errors.Is(err, unix.ENOSPC):
		return " (the disk is full: df -h and df -i show which)"
	}
	return ""
}
