package podworker_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/status"
)

// TestEventsMatchUpstream causes each event and checks its type, its reason and the beginning of its message, which
// users search for.
func TestEventsMatchUpstream(t *testing.T) {
	type deed func(f *fixture, p *corev1.Pod)
	steps := func(f *fixture) { f.clock.Step(time.Second) }
	preStop := func(p *corev1.Pod) {
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{
			Exec: &corev1.ExecAction{Command: []string{"drain"}},
		}}
	}
	remove := func(f *fixture, p *corev1.Pod) {
		f.waitStatus(p.UID, "running", running)
		f.manager.HandlePod(config.Change{Op: config.Delete, Pod: deleted(p)})
	}
	resize := func(why *status.Failure) deed {
		return func(f *fixture, p *corev1.Pod) {
			f.waitStatus(p.UID, "running", running)
			f.admitter.setResizeFailure(why)
			f.manager.HandlePod(config.Change{Op: config.Update, Pod: resized(p, "40m", "30Mi")})
		}
	}
	none := func(*fixture) {}
	for want, c := range map[string]struct {
		before func(f *fixture)
		change func(p *corev1.Pod)
		then   deed
	}{
		"Normal Created Container created":       {before: none},
		"Normal Started Container started":       {before: none},
		"Normal Killing Stopping container main": {before: none, then: remove},
		"Warning BackOff Back-off restarting failed container main in pod a_": {
			before: func(f *fixture) { f.runtime.ExitOnStart("main", 1) }},
		"Warning Failed Error: failed to start container \"main\": no such file": {
			before: func(f *fixture) { f.runtime.FailNext("StartContainer", errors.New("no such file")) }},
		"Warning Failed Error: disk full": {
			before: func(f *fixture) { f.runtime.FailNext("CreateContainer", errors.New("disk full")) }},
		"Warning FailedCreatePodSandBox Failed to create pod sandbox: ": {
			before: func(f *fixture) { f.runtime.FailNext("RunPodSandbox", errors.New("no network")) }},
		"Warning FailedCreatePodContainer unable to ensure pod container exists: no memory": {
			before: func(f *fixture) { f.builder.prepareErr = errors.New("no memory") }},
		"Warning FailedPodSandBoxStatus Unable to get pod sandbox status: gone mad": {
			before: func(f *fixture) { f.runtime.FailNext("PodSandboxStatus", errors.New("gone mad")) }},
		"Warning FailedSync error determining status: ": {before: none, then: func(f *fixture, p *corev1.Pod) {
			f.waitStatus(p.UID, "running", running)
			f.waitFor("the event", func() bool { // a relist may get a failure that was meant for this Pod
				f.runtime.FailNext("ListContainers", errors.New("gone mad"))
				f.signals.RuntimeConnected()
				return f.recorder.hasPrefix("Warning FailedSync error determining status: ")
			})
		}},
		"Normal SandboxChanged Pod sandbox changed, it will be killed and re-created.": {
			before: none, then: func(f *fixture, p *corev1.Pod) {
				f.waitStatus(p.UID, "running", running)
				boxes, err := f.runtime.ListPodSandbox(f.t.Context(), &runtimeapi.ListPodSandboxRequest{})
				require.NoError(f.t, err)
				_, err = f.runtime.StopPodSandbox(f.t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: boxes.Items[0].Id})
				require.NoError(f.t, err)
			}},
		"Warning FailedKillPod error killing pod: ": {
			before: func(f *fixture) { f.runtime.FailNext("StopPodSandbox", errors.New("busy")) }, then: remove},
		"Warning FailedPreStopHook PreStopHook failed": {
			before: func(f *fixture) { f.hooks.fail(errors.New("exit 1")) }, change: preStop, then: remove},
		"Normal ResizeStarted Pod resize started: {":     {before: none, then: resize(nil)},
		"Normal ResizeCompleted Pod resize completed: {": {before: none, then: resize(nil)},
		"Warning ResizeDeferred Pod resize Deferred: {": {before: none,
			then: resize(&status.Failure{Reason: corev1.PodReasonDeferred, Message: "later"})},
		"Warning ResizeInfeasible Pod resize Infeasible: {": {before: none,
			then: resize(&status.Failure{Reason: corev1.PodReasonInfeasible, Message: "never"})},
		"Warning ResizeError Pod resize error: {": {
			before: func(f *fixture) { f.runtime.FailNext("UpdateContainerResources", errors.New("busy")) }, then: resize(nil)},
		"Normal DeadlineExceeded Pod was active on the node longer than the specified deadline": {
			before: none,
			change: func(p *corev1.Pod) { limit := int64(5); p.Spec.ActiveDeadlineSeconds = &limit },
		},
		"Warning OutOfpods full": {
			before: func(f *fixture) { f.admitter.rejection = &status.Failure{Reason: "OutOfpods", Message: "full"} }},
	} {
		t.Run(want, func(t *testing.T) {
			f := newFixture(t)
			c.before(f)
			p := sized("20m", "30Mi")
			if c.change != nil {
				c.change(p)
			}
			f.add(p)
			if c.then != nil {
				c.then(f, p)
			}
			f.waitFor("the event", func() bool { steps(f); return f.recorder.hasPrefix(want) })
		})
	}
}
