package podworker

import (
	"time"

	"github.com/berth-dev/berth/kubelet/kuberuntime"
)

// Metrics is told what the workers do. Its methods are called from many goroutines, and do not block.
type Metrics interface {
	// SandboxStarted is told of each try to run a Pod's sandbox; of a Pod's first one if first is set.
	SandboxStarted(first bool, err error)
	// ContainerStarted is told of each try to make and start a container. The reason is that of its status if the try
	// failed.
	ContainerStarted(kind kuberuntime.Kind, reason string, err error)
	// PodRunning is told once of each Pod that this process has seen from its beginning, when it has come to run.
	PodRunning(sinceSeen, sinceCreated time.Duration)
}

// noMetrics is told in vain.
type noMetrics struct{}

var _ Metrics = noMetrics{}

// SandboxStarted implements Metrics.
func (noMetrics) SandboxStarted(bool, error) {}

// ContainerStarted implements Metrics.
func (noMetrics) ContainerStarted(kuberuntime.Kind, string, error) {}

// PodRunning implements Metrics.
func (noMetrics) PodRunning(time.Duration, time.Duration) {}
