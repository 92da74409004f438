package podworker_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/allocation"
	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/cri/fake"
	"github.com/berth-dev/berth/kubelet/images"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/pleg"
	"github.com/berth-dev/berth/kubelet/podworker"
	"github.com/berth-dev/berth/kubelet/status"
	"github.com/berth-dev/berth/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a node in memory: everything around the workers.
type fixture struct {
	t        *testing.T
	dir      string // of the node agent
	clock    *clocktesting.FakeClock
	runtime  *fake.Runtime
	volumes  *volumes
	statuses *statuses
	builder  *builder
	admitter *admitter
	recorder *recorder
	hooks    *hooks
	metrics  *countingMetrics
	gone     func(types.UID) // set before there are Pods
	watcher  *pleg.Watcher
	manager  *podworker.Manager
	stop     func()
}

func newFixture(t *testing.T) *fixture {
	clk := clocktesting.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	w := &fixture{
		t: t, dir: t.TempDir(), clock: clk, runtime: fake.New(clk), volumes: &volumes{mounted: map[types.UID]bool{}},
		statuses: &statuses{last: map[types.UID]corev1.PodStatus{}, finished: map[types.UID]bool{},
			changed: make(chan struct{}, 1)},
		metrics: &countingMetrics{by: map[string]int{}},
		builder: &builder{}, admitter: &admitter{}, hooks: &hooks{},
		recorder: &recorder{counts: map[string]int{}, fieldPaths: map[string][]string{}},
	}
	w.start()
	t.Cleanup(func() { w.stop() })
	return w
}

// start starts a node agent on what is there, as after a crash.
func (w *fixture) start() {
	pulls, err := images.New(images.Deps{Service: w.runtime, Clock: w.clock}, images.Config{})
	require.NoError(w.t, err)
	signals := podworker.NewSignals()
	watcher, err := pleg.New(pleg.Deps{
		Runtime: w.runtime, Clock: w.clock,
		OnPodChanged: signals.RuntimeChanged, OnListed: signals.RuntimePods,
	}, pleg.Config{})
	require.NoError(w.t, err)
	grants := allocation.Open(w.dir, nil)
	manager, err := podworker.New(podworker.Deps{
		Signals: signals, Runtime: w.runtime, Reader: watcher, Images: pulls, Volumes: w.volumes, Statuses: w.statuses,
		Probes: probes{}, Hooks: w.hooks, Builder: w.builder, Admitter: w.admitter, Clock: w.clock,
		Recorder: w.recorder, Allocations: grants, Metrics: w.metrics,
		OnPodGone: func(uid types.UID) {
			if w.gone != nil {
				w.gone(uid)
			}
		},
	}, podworker.Config{HostIPs: func() []string { return []string{"10.0.0.1"} }})
	require.NoError(w.t, err)
	w.manager, w.watcher = manager, watcher
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _ = watcher.Start(ctx) })
	group.Go(func() { _ = grants.Start(ctx) })
	group.Go(func() { _ = manager.Start(ctx) })
	w.stop = sync.OnceFunc(func() { cancel(); group.Wait() })
}

func (w *fixture) add(pod *corev1.Pod) { w.manager.HandlePod(config.Change{Op: config.Add, Pod: pod}) }

// waitStatus waits until the Pod's status satisfies the condition.
func (w *fixture) waitStatus(uid types.UID, what string, ok func(s corev1.PodStatus) bool) corev1.PodStatus {
	w.t.Helper()
	deadline := time.After(time.Minute)
	for {
		w.statuses.mu.Lock()
		s := w.statuses.last[uid]
		w.statuses.mu.Unlock()
		if ok(s) {
			return s
		}
		select {
		case <-w.statuses.changed:
		case <-deadline:
			require.FailNow(w.t, "did not happen", "%s; status is %+v", what, s)
		}
	}
}

func (w *fixture) waitFor(what string, ok func() bool) {
	w.t.Helper()
	require.Eventually(w.t, ok, time.Minute, time.Millisecond, what)
}

func running(s corev1.PodStatus) bool { return s.Phase == corev1.PodRunning && podutil.IsReady(&s) }

func pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	grace := int64(30)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID("uid-" + name), Generation: 1},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyAlways, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "main", Image: "app:1"}},
		},
	}
	for _, fn := range change {
		fn(p)
	}
	return p
}

func deleted(p *corev1.Pod) *corev1.Pod {
	p = p.DeepCopy()
	now, grace := metav1.Now(), int64(30)
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, &grace
	return p
}

func TestPodRunsAndGoes(t *testing.T) {
	w := newFixture(t)
	p := pod("a")
	w.add(p)
	s := w.waitStatus(p.UID, "running", running)
	require.Equal(t, "10.1.0.2", s.PodIP)
	require.Equal(t, "containerd://container-2", s.ContainerStatuses[0].ContainerID)
	require.Equal(t, map[string]int{"main": 1}, w.runtime.Running())

	p = deleted(p)
	w.manager.HandlePod(config.Change{Op: config.Delete, Pod: p})
	w.waitFor("finished", func() bool { return w.statuses.isFinished(p.UID) })
	require.False(t, w.volumes.has(p.UID), "the object goes only after the volumes")
	s = w.waitStatus(p.UID, "ended", func(s corev1.PodStatus) bool { return podutil.IsTerminal(&s) })
	require.Equal(t, int32(143), s.ContainerStatuses[0].State.Terminated.ExitCode)

	w.manager.HandlePod(config.Change{Op: config.Remove, Pod: p})
	w.waitFor("gone", func() bool { return !w.manager.Has(p.UID) })
	boxes, containers := w.runtime.Counts()
	require.Zero(t, boxes+containers)
}

func TestVolumesImageAndSandboxAtTheSameTime(t *testing.T) {
	w := newFixture(t)
	mount, pull, run := w.volumes.block(), w.runtime.Block("PullImage"), w.runtime.Block("RunPodSandbox")
	w.add(pod("a"))
	w.waitFor("all three begun", func() bool {
		return w.volumes.mountCount() == 1 && w.runtime.Calls("PullImage") == 1 && w.runtime.Calls("RunPodSandbox") == 1
	})
	run()
	pull()
	require.Zero(t, w.runtime.Calls("CreateContainer"), "nothing is created before the volumes are there")
	mount()
	w.waitStatus("uid-a", "running", running)
}

func TestCrashLoopWaits(t *testing.T) {
	w := newFixture(t)
	w.runtime.ExitOnStart("main", 1)
	w.add(pod("a"))
	s := w.waitStatus("uid-a", "backoff", func(s corev1.PodStatus) bool {
		return len(s.ContainerStatuses) > 0 && s.ContainerStatuses[0].State.Waiting != nil &&
			s.ContainerStatuses[0].State.Waiting.Reason == "CrashLoopBackOff"
	})
	require.Equal(t, int32(1), s.ContainerStatuses[0].RestartCount, "the first restart is at once")
	require.Equal(t, corev1.PodRunning, s.Phase)
	w.runtime.ClearExitOnStart("main")
	ended := w.clock.Now()
	w.waitFor("started again", func() bool { w.clock.Step(time.Second); return w.runtime.Running()["main"] == 1 })
	require.GreaterOrEqual(t, w.clock.Since(ended), kuberuntime.InitialBackoff)
	s = w.waitStatus("uid-a", "running", running)
	require.Equal(t, int32(2), s.ContainerStatuses[0].RestartCount)
}

func TestNeverPodEndsByItself(t *testing.T) {
	for code, phase := range map[int32]corev1.PodPhase{0: corev1.PodSucceeded, 3: corev1.PodFailed} {
		t.Run(strconv.Itoa(int(code)), func(t *testing.T) {
			w := newFixture(t)
			p := pod("a", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever })
			w.add(p)
			w.waitStatus(p.UID, "running", running)
			w.runtime.Exit("main", code)
			s := w.waitStatus(p.UID, "ended", func(s corev1.PodStatus) bool { return podutil.IsTerminal(&s) })
			require.Equal(t, phase, s.Phase)
			require.Equal(t, code, s.ContainerStatuses[0].State.Terminated.ExitCode)
			w.waitFor("volumes gone", func() bool { return !w.volumes.has(p.UID) })
			require.False(t, w.statuses.isFinished(p.UID), "nobody asked for the object to go")
		})
	}
}

func TestInitContainersInOrder(t *testing.T) {
	w := newFixture(t)
	p := pod("a", func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "one", Image: "app:1"}, {Name: "two", Image: "app:1"}}
	})
	w.add(p)
	w.waitFor("first", func() bool { return w.runtime.Running()["one"] == 1 })
	require.Len(t, w.runtime.Running(), 1)
	w.runtime.Exit("one", 0)
	w.waitFor("second", func() bool { return w.runtime.Running()["two"] == 1 })
	require.Len(t, w.runtime.Running(), 1)
	w.runtime.Exit("two", 0)
	s := w.waitStatus(p.UID, "running", running)
	require.Equal(t, "one", s.InitContainerStatuses[0].Name)
	require.True(t, s.InitContainerStatuses[0].Ready)
}

func TestKubeletRestartChangesNothing(t *testing.T) {
	w := newFixture(t)
	p := pod("a")
	w.add(p)
	before := w.waitStatus(p.UID, "running", running)
	w.stop()
	p = p.DeepCopy()
	p.Status = before
	w.start()
	w.add(p)
	w.manager.SourcesReady()
	w.waitStatus(p.UID, "running again", running)
	require.Equal(t, 1, w.runtime.Calls("CreateContainer"))
	require.Equal(t, 1, w.runtime.Calls("RunPodSandbox"))
	require.Zero(t, w.admitter.callCount("again"), "a pod that was taken is not judged again")
}

func TestOrphanIsEnded(t *testing.T) {
	w := newFixture(t)
	p := pod("a")
	w.add(p)
	w.waitStatus(p.UID, "running", running)
	w.stop()
	w.start()
	w.manager.SourcesReady()
	w.waitFor("gone", func() bool { b, c := w.runtime.Counts(); return b+c == 0 && !w.manager.Has(p.UID) })
	require.False(t, w.volumes.has(p.UID))
}

func TestPodFailsAtVolumeAttachmentLimit(t *testing.T) {
	w := newFixture(t)
	w.volumes.mountErr = volume.AttachLimitExceeded(errors.New("25 volumes are attached already"))
	p := pod("a")
	w.add(p)
	s := w.waitStatus(p.UID, "failed", func(s corev1.PodStatus) bool { return s.Phase == corev1.PodFailed })
	require.Equal(t, "VolumeAttachmentLimitExceeded", s.Reason)
	require.Contains(t, s.Message, "25 volumes are attached already")
	require.Zero(t, w.runtime.Calls("CreateContainer"))
}

func TestDeletionWhileVolumesAreMissing(t *testing.T) {
	w := newFixture(t)
	defer w.volumes.block()()
	p := pod("a")
	w.add(p)
	w.waitFor("mounting", func() bool { return w.volumes.mountCount() == 1 })
	w.manager.HandlePod(config.Change{Op: config.Delete, Pod: deleted(p)})
	w.waitFor("finished", func() bool { return w.statuses.isFinished(p.UID) })
}

func TestSandboxFailureIsRetried(t *testing.T) {
	w := newFixture(t)
	w.runtime.FailNext("RunPodSandbox", errors.New("no network"))
	w.add(pod("a"))
	w.waitFor("failed once", func() bool { return w.runtime.Calls("RunPodSandbox") == 1 && w.clock.HasWaiters() })
	w.waitFor("running", func() bool {
		w.clock.Step(time.Second)
		return w.runtime.Running()["main"] == 1
	})
	require.Equal(t, 2, w.runtime.Calls("RunPodSandbox"))
}

func TestPodsWaitForTheNetwork(t *testing.T) {
	w := newFixture(t)
	w.manager.SetNetwork(errors.New("cni plugin not initialized"))
	w.add(pod("a"))
	onHost := pod("b", func(p *corev1.Pod) { p.Spec.HostNetwork, p.Spec.Containers[0].Name = true, "host" })
	w.add(onHost)
	w.waitStatus(onHost.UID, "running", running)
	require.Zero(t, w.runtime.Running()["main"])
	w.waitFor("told", func() bool {
		return w.recorder.count("NetworkNotReady: network is not ready: cni plugin not initialized") == 1
	})
	w.manager.SetNetwork(nil)
	w.waitFor("running", func() bool { return w.runtime.Running()["main"] == 1 })
}

func TestRejectedPodFailsWithoutTrace(t *testing.T) {
	w := newFixture(t)
	w.admitter.rejection = &status.Failure{Reason: "OutOfpods", Message: "full"}
	p := pod("a")
	w.add(p)
	s := w.waitStatus(p.UID, "failed", func(s corev1.PodStatus) bool { return s.Phase == corev1.PodFailed })
	require.Equal(t, "OutOfpods", s.Reason)
	require.Zero(t, w.runtime.Calls("RunPodSandbox"))
}

func TestActiveDeadline(t *testing.T) {
	w := newFixture(t)
	limit := int64(60)
	p := pod("a", func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = &limit })
	w.add(p)
	w.waitStatus(p.UID, "running", running)
	w.waitFor("ended", func() bool { w.clock.Step(10 * time.Second); return len(w.runtime.Running()) == 0 })
	s := w.waitStatus(p.UID, "failed", func(s corev1.PodStatus) bool { return s.Phase == corev1.PodFailed })
	require.Equal(t, "DeadlineExceeded", s.Reason)
	require.Empty(t, w.runtime.Running())
}
