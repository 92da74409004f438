package nodeshutdown

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/lifecycle"
)

// pods are the Pods of a node. They end when end is called.
type pods struct {
	mu      sync.Mutex
	running []*corev1.Pod
	ending  map[string]func()
	asked   chan string // "NAME GRACE"
}

func (p *pods) Pods() []*corev1.Pod { return p.running }

func (p *pods) Terminate(pod *corev1.Pod, grace int64, done func()) {
	p.mu.Lock()
	p.ending[pod.Name] = done
	p.mu.Unlock()
	p.asked <- fmt.Sprintf("%s %d", pod.Name, grace)
}

func (p *pods) end(name string) {
	p.mu.Lock()
	done := p.ending[name]
	p.mu.Unlock()
	done()
}

func newPod(name string, priority int32, grace int64) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		Priority: &priority, TerminationGracePeriodSeconds: ptr.To(grace),
	}}
}

// node is a Manager with its Pods on a machine.
type node struct {
	*Manager
	t        *testing.T
	pods     *pods
	machine  *machine
	events   *record.FakeRecorder
	registry *prometheus.Registry
	notReady chan error
	stateDir string
	address  string
	stop     func()
}

func newNode(t *testing.T, periods []Period, running ...*corev1.Pod) *node {
	t.Helper()
	address, _ := bus(t)
	n := &node{
		t: t, pods: &pods{running: running, ending: map[string]func(){}, asked: make(chan string, 10)},
		machine: newMachine(t, address, 5*time.Second), stateDir: t.TempDir(), address: address,
	}
	n.start(periods)
	return n
}

// start starts a new process of the kubelet.
func (n *node) start(periods []Period) {
	n.t.Helper()
	n.events, n.registry, n.notReady = record.NewFakeRecorder(10), prometheus.NewRegistry(), make(chan error, 10)
	var err error
	n.Manager, err = New(Deps{
		Terminator: n.pods, SetNotReady: func(reason error) { n.notReady <- reason }, Recorder: n.events,
		Node: &corev1.ObjectReference{Kind: "Node", Name: "n"}, Registerer: n.registry,
	}, Config{Periods: periods, StateDir: n.stateDir, BusAddress: n.address, LogindDir: n.machine.dir})
	require.NoError(n.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _ = n.Start(ctx) })
	n.stop = sync.OnceFunc(func() { cancel(); group.Wait() })
	n.t.Cleanup(n.stop)
}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(waitTimeout):
		require.FailNow(t, "nothing happens")
		panic("unreachable")
	}
}

func (n *node) metric(name string) float64 {
	n.t.Helper()
	families, err := n.registry.Gather()
	require.NoError(n.t, err)
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	require.FailNow(n.t, "no metric "+name)
	return 0
}

func TestDelayIsRoundedUpToSeconds(t *testing.T) {
	n := newNode(t, TwoPeriods(60*time.Second+500*time.Millisecond, 20*time.Second))
	n.machine.waitLock()
	content, err := os.ReadFile(filepath.Join(n.machine.dir, dropIn))
	require.NoError(t, err)
	require.Contains(t, string(content), "\nInhibitDelayMaxSec=61\n")
}

func TestShutdownWaitsForPodsByPriority(t *testing.T) {
	n := newNode(t, TwoPeriods(60*time.Second, 20*time.Second), newPod("critical", systemCritical+1, 300), newPod("web", 0, 300),
		newPod("short", 5, 7))
	released := n.machine.waitLock()
	content, err := os.ReadFile(filepath.Join(n.machine.dir, dropIn))
	require.NoError(t, err)
	require.Contains(t, string(content), "[Login]\nInhibitDelayMaxSec=60\n")
	require.True(t, n.Admit(nil).Admit)

	n.machine.announce(true)
	require.EqualError(t, receive(t, n.notReady), "node is shutting down")
	require.ElementsMatch(t, []string{"web 40", "short 7"}, []string{receive(t, n.pods.asked), receive(t, n.pods.asked)})
	require.Equal(t, lifecycle.PodAdmitResult{Reason: "NodeShutdown", Message: "Pod was rejected as the node is shutting down."}, n.Admit(nil))
	require.Equal(t, "Normal Shutdown Shutdown manager detected shutdown event", receive(t, n.events.Events))
	n.pods.end("web")
	require.Empty(t, n.pods.asked, "critical Pods end after all others")
	n.pods.end("short")
	require.Equal(t, "critical 20", receive(t, n.pods.asked))
	require.Positive(t, n.metric("kubelet_graceful_shutdown_start_time_seconds"))
	require.Zero(t, n.metric("kubelet_graceful_shutdown_end_time_seconds"))
	select {
	case <-released:
		require.Fail(t, "the lock is released before the Pods have ended")
	default:
	}
	n.pods.end("critical")
	receive(t, released)
	require.Positive(t, n.metric("kubelet_graceful_shutdown_end_time_seconds"))

	// The kubelet after the shutdown shows the times of it.
	n.stop()
	n.machine.props.SetMust(logindIface, "PreparingForShutdown", false)
	n.start(TwoPeriods(60*time.Second, 20*time.Second))
	n.machine.waitLock()
	require.Positive(t, n.metric("kubelet_graceful_shutdown_end_time_seconds"))
	require.True(t, n.Admit(nil).Admit)
}

func TestCancelledShutdown(t *testing.T) {
	n := newNode(t, TwoPeriods(2*time.Second, 0))
	released := n.machine.waitLock()
	n.machine.announce(true)
	require.Error(t, receive(t, n.notReady))
	receive(t, released)
	n.machine.announce(false)
	require.NoError(t, receive(t, n.notReady))
	n.machine.waitLock()
	require.True(t, n.Admit(nil).Admit)
	require.Contains(t, receive(t, n.events.Events), "shutdown event")
	require.Contains(t, receive(t, n.events.Events), "shutdown cancellation")
}

// TestPodsThatDoNotEndDelayTheShutdownByTheirPeriodOnly ends the machine although a Pod hangs.
func TestPodsThatDoNotEndDelayTheShutdownByTheirPeriodOnly(t *testing.T) {
	n := newNode(t, []Period{{Priority: 0, Grace: time.Second}}, newPod("hangs", 0, 300))
	released := n.machine.waitLock()
	n.machine.announce(true)
	require.Equal(t, "hangs 1", receive(t, n.pods.asked))
	receive(t, released)
}

// TestKubeletThatStartsDuringAShutdown starts when the shutdown was announced already.
func TestKubeletThatStartsDuringAShutdown(t *testing.T) {
	n := newNode(t, TwoPeriods(2*time.Second, 0), newPod("web", 0, 1))
	n.machine.waitLock()
	n.stop()
	n.machine.announce(true)
	n.start(TwoPeriods(2*time.Second, 0))
	require.Equal(t, "web 1", receive(t, n.pods.asked))
	n.pods.end("web")
	receive(t, n.machine.waitLock())
}

func TestNoLogind(t *testing.T) {
	address, _ := bus(t)
	l, err := connect(t.Context(), address)
	require.NoError(t, err)
	defer l.conn.Close()
	_, err = l.inhibit(t.Context())
	require.ErrorContains(t, err, "take a lock of logind that delays the machine's shutdown")
	_, err = connect(t.Context(), "unix:path=/does/not/exist")
	require.ErrorContains(t, err, "connect to the system's D-Bus (is this machine run by systemd?)")
}

func TestPeriodsOfPods(t *testing.T) {
	periods := []Period{{100, 3 * time.Second}, {10, time.Second}, {1000, 5 * time.Second}}
	var names []string
	for _, g := range groupPods(periods, []*corev1.Pod{
		newPod("below", 1, 0), newPod("at", 10, 0), newPod("between", 999, 0), newPod("above", 5000, 0),
	}) {
		for _, pod := range g.pods {
			names = append(names, fmt.Sprint(g.Priority, " ", pod.Name))
		}
	}
	require.Equal(t, []string{"10 below", "10 at", "100 between", "1000 above"}, names)
	require.Equal(t, 9*time.Second, total(periods))
	require.Empty(t, TwoPeriods(0, 0))
	require.Equal(t, []Period{{0, 20 * time.Second}, {systemCritical, 10 * time.Second}}, TwoPeriods(30*time.Second, 10*time.Second))
}

func TestMissingDependencies(t *testing.T) {
	for want, deps := range map[string]Deps{
		"nodeshutdown: Deps.Terminator is required":  {},
		"nodeshutdown: Deps.SetNotReady is required": {Terminator: &pods{}},
	} {
		_, err := New(deps, Config{Periods: TwoPeriods(time.Second, 0), StateDir: "/x"})
		require.EqualError(t, err, want)
	}
}
