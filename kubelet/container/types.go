package container

import (
	"errors"
	"fmt"
	"os"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime is a container runtime: both services of the CRI.
type Runtime interface {
	runtimeapi.RuntimeServiceClient
	runtimeapi.ImageServiceClient
}

// Option changes a Runtime before it is used.
type Option func(Runtime)

// RunContainerOptions are the options that a container is started with.
type RunContainerOptions struct {
	// Envs are its variables, in the order in which they are resolved.
	Envs []*runtimeapi.KeyValue
	// Mounts are its volumes, its hosts file and its termination log.
	Mounts []*runtimeapi.Mount
	// Devices are the node's devices that it may use.
	Devices []*runtimeapi.Device
	// CDIDevices are devices by their qualified names.
	CDIDevices []*runtimeapi.CDIDevice
	// Hostname is the Pod's, empty for one on the node's network.
	Hostname string
	// PodContainerDir is the directory of its termination logs on the node.
	PodContainerDir string
	// CgroupParent is the cgroup of its Pod.
	CgroupParent string
	// ReadOnly says that its root file system is not to be written.
	ReadOnly bool
}

// SyncAction is one kind of step towards a Pod's desired state.
type SyncAction string

// The steps.
const (
	StartContainer   SyncAction = "StartContainer"
	KillContainer    SyncAction = "KillContainer"
	InitContainer    SyncAction = "InitContainer"
	CreatePodSandbox SyncAction = "CreatePodSandbox"
	ConfigPodSandbox SyncAction = "ConfigPodSandbox"
	KillPodSandbox   SyncAction = "KillPodSandbox"
)

// SyncResult is the result of one step.
type SyncResult struct {
	Action SyncAction
	// Target is the object of the step: a container's name, or a sandbox's id.
	Target any
	// Error is the reason of the failure, nil if there was none; Message has the details.
	Error   error
	Message string
}

// PodSyncResult is the result of all steps for a Pod.
type PodSyncResult struct {
	SyncResults []*SyncResult
	// SyncError is a failure beside those of the steps.
	SyncError error
}

// AddSyncResult adds the results of steps.
func (r *PodSyncResult) AddSyncResult(results ...*SyncResult) {
	r.SyncResults = append(r.SyncResults, results...)
}

// Fail records a failure beside those of the steps.
func (r *PodSyncResult) Fail(err error) { r.SyncError = err }

// Error joins all failures; it is nil if there were none.
func (r *PodSyncResult) Error() error {
	errs := []error{r.SyncError}
	for _, result := range r.SyncResults {
		if result.Error != nil {
			errs = append(errs, fmt.Errorf("%s of %v: %w: %s", result.Action, result.Target, result.Error, result.Message))
		}
	}
	return errors.Join(errs...)
}

// OSInterface is the file system and the clock of the node, as far as they can be replaced.
type OSInterface interface {
	MkdirAll(path string, perm os.FileMode) error
	Symlink(oldname, newname string) error
	Stat(path string) (os.FileInfo, error)
	Remove(path string) error
	RemoveAll(path string) error
	ReadDir(dirname string) ([]os.DirEntry, error)
	Glob(pattern string) ([]string, error)
	Hostname() (string, error)
	Chtimes(path string, atime, mtime time.Time) error
}
