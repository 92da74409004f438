package volumemanager

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	mount "k8s.io/mount-utils"
)

// The reasons of events.
const (
	reasonFailedMount         = "FailedMount"
	reasonFailedMap           = "FailedMapVolume"
	reasonMismatch            = "FailedMountOnFilesystemMismatch"
	reasonFailedUnmount       = "FailedUnmount"
	reasonOwnershipInProgress = "VolumePermissionChangeInProgress"
	reasonOwnershipRefused    = "VolumePermissionChangeRefused"
	reasonOwnershipKept       = "AlreadyMountedVolume"
	reasonMemoryOnDisk        = "PossibleMemoryBackedVolumesOnDisk"
)

// eventRepeatInterval is after how long the same failure of the same volume causes an event again.
const eventRepeatInterval = 5 * time.Minute

// reportFailure writes an event about a failure of a volume, unless the last event about it had the same message and is
// recent. It returns whether it did.
func (m *Manager) reportFailure(state *podState, name, reason, message string) (reported bool) {
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
	if skip || pod == nil {
		return false
	}
	m.deps.Recorder.Event(pod, corev1.EventTypeWarning, reason, message)
	return true
}

// reportMismatch writes an event about the PersistentVolume if its disk has another file system than it says: who
// administers the storage sees no events of Pods.
func (m *Manager) reportMismatch(state *podState, name string, err error) {
	var failed mount.MountError
	if !errors.As(err, &failed) || failed.Type != mount.FilesystemMismatch {
		return
	}
	m.mu.Lock()
	pv := state.resolved[name]
	m.mu.Unlock()
	if pv != nil {
		m.deps.Recorder.Eventf(pv, corev1.EventTypeWarning, reasonMismatch,
			"MountVolume failed for volume %q : %v", name, err)
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
