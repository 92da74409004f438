package agent

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/lifecycle"
	"github.com/berth-dev/berth/kubelet/node"
	"github.com/berth-dev/berth/kubelet/nodeshutdown"
	"github.com/berth-dev/berth/kubelet/podworker"
)

// Status of a Pod that ends because the machine shuts down.
const (
	reasonShutdown  = "Terminated"
	messageShutdown = "Pod was terminated in response to imminent node shutdown."
)

// nodeShutdown ends the Pods when the machine shuts down; its manager is nil where that is not configured.
type nodeShutdown struct {
	manager *nodeshutdown.Manager
	workers func() *podworker.Manager // there is one when Start is called
}

var _ nodeshutdown.Terminator = (*nodeShutdown)(nil)

func newNodeShutdown(base *base, n *nodeComponents, workers func() *podworker.Manager) (*nodeShutdown, error) {
	config := &base.config
	s := &nodeShutdown{workers: workers}
	if len(config.Shutdown.Periods) == 0 {
		return s, nil
	}
	var err error
	s.manager, err = nodeshutdown.New(nodeshutdown.Deps{
		Terminator: s, SetNotReady: func(reason error) { n.manager.SetNotReady("shutdown", reason) },
		Recorder: base.deps.Recorder, Node: node.Reference(config.Node.Name), Registerer: base.metrics.main,
		Clock: base.deps.Clock, Logger: base.logger("node shutdown"),
	}, nodeshutdown.Config{Periods: config.Shutdown.Periods, StateDir: config.RootDir})
	return s, err
}

// Start handles shutdowns of the machine until ctx ends.
func (s *nodeShutdown) Start(ctx context.Context) error {
	if s.manager == nil {
		return nil
	}
	return s.manager.Start(ctx)
}

// handlers returns the admission handlers of a node that may shut down.
func (s *nodeShutdown) handlers(others []lifecycle.PodAdmitHandler) []lifecycle.PodAdmitHandler {
	if s.manager == nil {
		return others
	}
	return append([]lifecycle.PodAdmitHandler{s.manager}, others...)
}

// Pods implements nodeshutdown.Terminator.
func (s *nodeShutdown) Pods() []*corev1.Pod {
	var running []*corev1.Pod
	for _, pod := range s.workers().Pods() {
		if !podutil.IsTerminal(&pod.Status) {
			running = append(running, pod)
		}
	}
	return running
}

// Terminate implements nodeshutdown.Terminator.
func (s *nodeShutdown) Terminate(pod *corev1.Pod, grace int64, done func()) {
	request := podworker.KillRequest{Grace: &grace, Status: shutdownStatus, Released: done}
	if !s.workers().Kill(pod.UID, request) {
		done()
	}
}

func shutdownStatus(*corev1.Pod, *container.PodStatus) corev1.PodStatus {
	return corev1.PodStatus{
		Phase: corev1.PodFailed, Reason: reasonShutdown, Message: messageShutdown,
		Conditions: []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet,
			Message: messageShutdown,
		}},
	}
}
