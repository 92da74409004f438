package podworker_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/images"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/status"
	"github.com/berth-dev/berth/volume"
)

func TestPodRunsAndGoes(t *testing.T) {
	f := newFixture(t)
	p := pod("a")
	f.add(p)
	s := f.waitStatus(p.UID, "running", running)
	require.Equal(t, "10.1.0.2", s.PodIP)
	require.Equal(t, "containerd://container-2", s.ContainerStatuses[0].ContainerID)
	require.Equal(t, map[string]int{"main": 1}, f.runtime.Running())

	p = deleted(p)
	f.manager.HandlePod(config.Change{Op: config.Delete, Pod: p})
	f.waitFor("finished", func() bool { return f.statuses.isFinished(p.UID) })
	require.False(t, f.volumes.has(p.UID), "the object goes only after the volumes")
	s = f.waitStatus(p.UID, "ended", func(s corev1.PodStatus) bool { return podutil.IsTerminal(&s) })
	require.Equal(t, int32(143), s.ContainerStatuses[0].State.Terminated.ExitCode)

	f.manager.HandlePod(config.Change{Op: config.Remove, Pod: p})
	f.waitFor("gone", func() bool { return !f.manager.Has(p.UID) })
	boxes, containers := f.runtime.Counts()
	require.Zero(t, boxes+containers)
}

func TestVolumesImageAndSandboxAtTheSameTime(t *testing.T) {
	f := newFixture(t)
	mount, pull, run := f.volumes.block(), f.runtime.Block("PullImage"), f.runtime.Block("RunPodSandbox")
	f.add(pod("a"))
	f.waitFor("all three begun", func() bool {
		return f.volumes.mountCount() == 1 && f.runtime.Calls("PullImage") == 1 && f.runtime.Calls("RunPodSandbox") == 1
	})
	run()
	pull()
	require.Zero(t, f.runtime.Calls("CreateContainer"), "nothing is created before the volumes are there")
	mount()
	f.waitStatus("uid-a", "running", running)
}

// TestImageFailureIsClearedByTheImage has the image appear on the node, while the Pod's volumes keep the container from starting.
func TestImageFailureIsClearedByTheImage(t *testing.T) {
	for _, reason := range []string{images.ReasonUnavailable, images.ReasonBadSignature, images.ReasonPull} {
		t.Run(reason, func(t *testing.T) {
			f := newFixture(t)
			waits := func(reason string) func(corev1.PodStatus) bool {
				return func(s corev1.PodStatus) bool {
					return len(s.ContainerStatuses) > 0 && s.ContainerStatuses[0].State.Waiting != nil &&
						s.ContainerStatuses[0].State.Waiting.Reason == reason
				}
			}
			mount, pull := f.volumes.block(), f.runtime.Block("PullImage")
			f.runtime.FailNext("PullImage", grpcstatus.Error(codes.Unknown, reason+": not now"))
			f.add(pod("a"))
			f.waitFor("pull", func() bool { return f.runtime.Calls("PullImage") == 1 })
			inspect := f.runtime.Block("ImageStatus")
			pull()
			f.waitStatus("uid-a", "failure", waits(reason))
			f.runtime.AddImage("app:1")
			inspect()
			f.waitStatus("uid-a", "no failure", waits("ContainerCreating"))
			mount()
			f.waitStatus("uid-a", "running", running)
		})
	}
}

func TestCrashLoopWaits(t *testing.T) {
	f := newFixture(t)
	f.runtime.ExitOnStart("main", 1)
	f.add(pod("a"))
	s := f.waitStatus("uid-a", "backoff", func(s corev1.PodStatus) bool {
		return len(s.ContainerStatuses) > 0 && s.ContainerStatuses[0].State.Waiting != nil &&
			s.ContainerStatuses[0].State.Waiting.Reason == "CrashLoopBackOff"
	})
	require.Equal(t, int32(1), s.ContainerStatuses[0].RestartCount, "the first restart is at once")
	require.Equal(t, corev1.PodRunning, s.Phase)
	f.runtime.ClearExitOnStart("main")
	ended := f.clock.Now()
	f.waitFor("started again", func() bool { f.clock.Step(time.Second); return f.runtime.Running()["main"] == 1 })
	require.GreaterOrEqual(t, f.clock.Since(ended), kuberuntime.InitialBackoff)
	s = f.waitStatus("uid-a", "running", running)
	require.Equal(t, int32(2), s.ContainerStatuses[0].RestartCount)
}

func TestNeverPodEndsByItself(t *testing.T) {
	for code, phase := range map[int32]corev1.PodPhase{0: corev1.PodSucceeded, 3: corev1.PodFailed} {
		t.Run(strconv.Itoa(int(code)), func(t *testing.T) {
			f := newFixture(t)
			p := pod("a", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever })
			f.add(p)
			f.waitStatus(p.UID, "running", running)
			f.runtime.Exit("main", code)
			s := f.waitStatus(p.UID, "ended", func(s corev1.PodStatus) bool { return podutil.IsTerminal(&s) })
			require.Equal(t, phase, s.Phase)
			require.Equal(t, code, s.ContainerStatuses[0].State.Terminated.ExitCode)
			f.waitFor("volumes gone", func() bool { return !f.volumes.has(p.UID) })
			require.False(t, f.statuses.isFinished(p.UID), "the object's deletion was not requested")
		})
	}
}

func TestInitContainersInOrder(t *testing.T) {
	f := newFixture(t)
	p := pod("a", func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "one", Image: "app:1"}, {Name: "two", Image: "app:1"}}
	})
	f.add(p)
	f.waitFor("first", func() bool { return f.runtime.Running()["one"] == 1 })
	require.Len(t, f.runtime.Running(), 1)
	f.runtime.Exit("one", 0)
	f.waitFor("second", func() bool { return f.runtime.Running()["two"] == 1 })
	require.Len(t, f.runtime.Running(), 1)
	f.runtime.Exit("two", 0)
	s := f.waitStatus(p.UID, "running", running)
	require.Equal(t, "one", s.InitContainerStatuses[0].Name)
	require.True(t, s.InitContainerStatuses[0].Ready)
}

func TestKubeletRestartChangesNothing(t *testing.T) {
	f := newFixture(t)
	p := pod("a")
	f.add(p)
	before := f.waitStatus(p.UID, "running", running)
	f.stop()
	p = p.DeepCopy()
	p.Status = before
	f.start()
	f.add(p)
	f.manager.SourcesReady()
	f.waitStatus(p.UID, "running again", running)
	require.Equal(t, 1, f.runtime.Calls("CreateContainer"))
	require.Equal(t, 1, f.runtime.Calls("RunPodSandbox"))
	require.Zero(t, f.admitter.callCount("again"), "an admitted Pod is not admitted again")
}

func TestOrphanIsEnded(t *testing.T) {
	f := newFixture(t)
	p := pod("a")
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	f.stop()
	f.start()
	f.manager.SourcesReady()
	f.waitFor("gone", func() bool { b, c := f.runtime.Counts(); return b+c == 0 && !f.manager.Has(p.UID) })
	require.False(t, f.volumes.has(p.UID))
}

func TestPodFailsAtVolumeAttachmentLimit(t *testing.T) {
	f := newFixture(t)
	f.volumes.mountErr = volume.AttachLimitExceeded(errors.New("25 volumes are attached already"))
	p := pod("a")
	f.add(p)
	s := f.waitStatus(p.UID, "failed", func(s corev1.PodStatus) bool { return s.Phase == corev1.PodFailed })
	require.Equal(t, "VolumeAttachmentLimitExceeded", s.Reason)
	require.Contains(t, s.Message, "25 volumes are attached already")
	require.Zero(t, f.runtime.Calls("CreateContainer"))
}

func TestDeletionWhileVolumesAreMissing(t *testing.T) {
	f := newFixture(t)
	defer f.volumes.block()()
	p := pod("a")
	f.add(p)
	f.waitFor("mounting", func() bool { return f.volumes.mountCount() == 1 })
	f.manager.HandlePod(config.Change{Op: config.Delete, Pod: deleted(p)})
	f.waitFor("finished", func() bool { return f.statuses.isFinished(p.UID) })
}

func TestSandboxFailureIsRetried(t *testing.T) {
	f := newFixture(t)
	f.runtime.FailNext("RunPodSandbox", errors.New("no network"))
	f.add(pod("a"))
	f.waitFor("failed once", func() bool { return f.runtime.Calls("RunPodSandbox") == 1 && f.clock.HasWaiters() })
	f.waitFor("running", func() bool {
		f.clock.Step(time.Second)
		return f.runtime.Running()["main"] == 1
	})
	require.Equal(t, 2, f.runtime.Calls("RunPodSandbox"))
}

func TestPodsWaitForTheNetwork(t *testing.T) {
	f := newFixture(t)
	f.signals.SetNetwork(errors.New("cni plugin not initialized"))
	f.add(pod("a"))
	onHost := pod("b", func(p *corev1.Pod) { p.Spec.HostNetwork, p.Spec.Containers[0].Name = true, "host" })
	f.add(onHost)
	f.waitStatus(onHost.UID, "running", running)
	require.Zero(t, f.runtime.Running()["main"])
	f.waitFor("the event", func() bool {
		return f.recorder.count("NetworkNotReady: network is not ready: cni plugin not initialized") == 1
	})
	f.signals.SetNetwork(nil)
	f.waitFor("running", func() bool { return f.runtime.Running()["main"] == 1 })
}

func TestRejectedPodFailsWithoutTrace(t *testing.T) {
	f := newFixture(t)
	f.admitter.rejection = &status.Failure{Reason: "OutOfpods", Message: "full"}
	p := pod("a")
	f.add(p)
	s := f.waitStatus(p.UID, "failed", func(s corev1.PodStatus) bool { return s.Phase == corev1.PodFailed })
	require.Equal(t, "OutOfpods", s.Reason)
	require.Zero(t, f.runtime.Calls("RunPodSandbox"))
}

func TestActiveDeadline(t *testing.T) {
	f := newFixture(t)
	limit := int64(60)
	p := pod("a", func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = &limit })
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	f.waitFor("ended", func() bool { f.clock.Step(10 * time.Second); return len(f.runtime.Running()) == 0 })
	s := f.waitStatus(p.UID, "failed", func(s corev1.PodStatus) bool { return s.Phase == corev1.PodFailed })
	require.Equal(t, "DeadlineExceeded", s.Reason)
	require.Empty(t, f.runtime.Running())
}

// TestImageThatChangesBeforeItsContainerStarts has the old image present, and waiting for its turn, when the spec gets another.
func TestImageThatChangesBeforeItsContainerStarts(t *testing.T) {
	f := newFixture(t)
	p := pod("a", func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "app:1"}} })
	f.add(p)
	f.waitFor("the init container runs", func() bool { return f.runtime.Running()["init"] == 1 })
	changed := p.DeepCopy()
	changed.Generation, changed.Spec.Containers[0].Image = p.Generation+1, "app:2"
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: changed})
	f.waitStatus(p.UID, "with the new spec", func(s corev1.PodStatus) bool { return s.ObservedGeneration == changed.Generation })
	f.runtime.Exit("init", 0)
	s := f.waitStatus(p.UID, "running", running)
	require.Equal(t, "app:2", s.ContainerStatuses[0].Image)
	require.Zero(t, s.ContainerStatuses[0].RestartCount, "the old image never ran")
}

// TestChangedContainerIsStartedAgainWhateverItsPolicy changes the image of containers that end with exit code 0 when they are
// stopped.
func TestChangedContainerIsStartedAgainWhateverItsPolicy(t *testing.T) {
	for _, policy := range []corev1.RestartPolicy{corev1.RestartPolicyNever, corev1.RestartPolicyOnFailure} {
		t.Run(string(policy), func(t *testing.T) {
			f := newFixture(t)
			p := pod("a", func(p *corev1.Pod) { p.Spec.RestartPolicy = policy })
			f.add(p)
			f.waitStatus(p.UID, "running", running)
			changed := p.DeepCopy()
			changed.Spec.Containers[0].Image = "app:2"
			stop := f.runtime.Block("StopContainer")
			f.manager.HandlePod(config.Change{Op: config.Update, Pod: changed})
			f.waitFor("it is stopped", func() bool { return f.runtime.Calls("StopContainer") == 1 })
			f.runtime.Exit("main", 0)
			stop()
			f.waitStatus(p.UID, "running again", mainIsReplaced)
			f.statuses.mu.Lock()
			require.Empty(t, f.statuses.refused)
			f.statuses.mu.Unlock()
			f.runtime.Exit("main", 0)
			f.waitStatus(p.UID, "ended by itself", func(s corev1.PodStatus) bool { return s.Phase == corev1.PodSucceeded })
		})
	}
}

// TestReplacedContainerIsNotReportedInBetween has the kubelet replace a container, whose end is seen before the stop that was requested has
// returned, and whose next image is found after that: a state that is over in a moment is not reported.
func TestReplacedContainerIsNotReportedInBetween(t *testing.T) {
	f := newFixture(t)
	f.runtime.AddImage("app:2")
	found := f.replaceMain("ImageStatus")
	found()
	f.waitStatus("uid-a", "running again", mainIsReplaced)
	f.statuses.mu.Lock()
	defer f.statuses.mu.Unlock()
	require.Zero(t, f.statuses.unready)
}

// TestReplacedContainerIsReportedWhileItsImageIsPulled has the image pulled, which may take minutes.
func TestReplacedContainerIsReportedWhileItsImageIsPulled(t *testing.T) {
	f := newFixture(t)
	pulled := f.replaceMain("PullImage")
	f.waitStatus("uid-a", "not ready", func(s corev1.PodStatus) bool { return !running(s) && s.ContainerStatuses[0].State.Running == nil })
	pulled()
	f.waitStatus("uid-a", "running again", mainIsReplaced)
}

// mainIsReplaced reports whether the container of image app:2 runs in the place of the first one.
func mainIsReplaced(s corev1.PodStatus) bool {
	return running(s) && s.ContainerStatuses[0].RestartCount == 1 && s.ContainerStatuses[0].Image == "app:2"
}

// replaceMain runs Pod a and has its container replaced by one of image app:2. It returns when the end of the first one and of its stop
// are known, and how to end the call of the runtime's method that the next image waits for.
func (f *fixture) replaceMain(imageCall string) (release func()) {
	f.t.Helper()
	p := pod("a")
	f.add(p)
	before := f.waitStatus(p.UID, "running", running)
	_, id, _ := strings.Cut(before.ContainerStatuses[0].ContainerID, "://")
	ended := f.manager.Ended(p.UID, id)
	changed := p.DeepCopy()
	changed.Spec.Containers[0].Image = "app:2"
	calls := f.runtime.Calls(imageCall)
	release = f.runtime.Block(imageCall)
	stop := f.runtime.Block("StopContainer")
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: changed})
	f.waitFor("it is stopped, and its next image asked for", func() bool {
		return f.runtime.Calls("StopContainer") == 1 && f.runtime.Calls(imageCall) > calls
	})
	f.runtime.Exit("main", 0)
	select {
	case <-ended:
	case <-time.After(time.Minute):
		require.Fail(f.t, "its end is not seen")
	}
	reads := f.runtime.Calls("ListContainers")
	stop()
	f.waitFor("what the stop has changed is read", func() bool { return f.runtime.Calls("ListContainers") > reads })
	return release
}

// A client that follows the log of a container asks for its end while the last of its Pod is removed.
func TestEndOfAContainerIsReportedWhileItsPodGoes(t *testing.T) {
	f := newFixture(t)
	ended := make(chan (<-chan struct{}), 1)
	f.gone = func(uid types.UID) { ended <- f.manager.Ended(uid, "one that was removed") }
	p := pod("a")
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	f.manager.HandlePod(config.Change{Op: config.Remove, Pod: p})
	reported := <-ended
	select {
	case <-reported:
	case <-time.After(time.Minute):
		require.Fail(t, "it is not reported")
	}
}

// A container starts again in the sandbox that it had, also after a start of the kubelet, when its RuntimeClass cannot be read any more.
func TestContainerIsRestartedWithoutItsRuntimeClass(t *testing.T) {
	f := newFixture(t)
	p := pod("a")
	f.add(p)
	p.Status = f.waitStatus(p.UID, "running", running)
	f.stop()
	f.builder.handlerErr = errors.New("find RuntimeClass: not found")
	f.start()
	f.add(p)
	f.runtime.Exit("main", 1)
	f.waitFor("it runs again", func() bool { return f.runtime.Running()["main"] == 1 })
	require.Equal(t, 1, f.runtime.Calls("RunPodSandbox"))

	f.add(pod("b"))
	f.waitFor("a new Pod needs it", func() bool {
		return f.recorder.count("FailedCreatePodSandBox: Failed to create pod sandbox: find RuntimeClass: not found") == 1
	})
}
