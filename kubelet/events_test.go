package kubelet

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	v1 "github.com/google/cadvisor/info/v1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/internal/testlog"
	"github.com/berth-dev/berth/kubelet/cadvisor"
	"github.com/berth-dev/berth/kubelet/cri/fake"
	"github.com/berth-dev/berth/kubelet/node"
)

// killer is a machine whose kernel kills.
type killer struct {
	cadvisor.Interface
	kills map[string]v1.OomKillEventData
}

// WatchOOM implements cadvisor.Interface.
func (k killer) WatchOOM(_ context.Context, told func(name string, killed v1.OomKillEventData)) error {
	for name, killed := range k.kills {
		told(name, killed)
	}
	return nil
}

// about is a recorder that keeps what events are about.
type about struct {
	record.FakeRecorder
	objects []runtime.Object
}

// Event implements record.EventRecorder.
func (a *about) Event(object runtime.Object, kind, reason, message string) {
	a.objects = append(a.objects, object)
	a.FakeRecorder.Event(object, kind, reason, message)
}

// Eventf implements record.EventRecorder.
func (a *about) Eventf(object runtime.Object, kind, reason, format string, args ...any) {
	a.objects = append(a.objects, object)
	a.FakeRecorder.Eventf(object, kind, reason, format, args...)
}

func newAbout() *about { return &about{FakeRecorder: *record.NewFakeRecorder(10)} }

func TestSystemOOMIsToldOfTheNode(t *testing.T) {
	events := newAbout()
	watcher := NewOOMWatcher(killer{kills: map[string]v1.OomKillEventData{
		"/": {Pid: 42, ProcessName: "stress"}, "/kubepods/podx/c": {Pid: 7, ProcessName: "app"},
	}}, events)
	require.NoError(t, watcher.Start(node.Reference("n")))
	require.Equal(t, "Warning SystemOOM System OOM encountered, victim process: stress, pid: 42", <-events.Events)
	require.Empty(t, events.Events, "a container's own limit is no business of the node's")
	require.Equal(t, []runtime.Object{node.Reference("n")}, events.objects)
	require.ErrorContains(t, watcher.Start(nil), "needs a machine")
}

func TestTwoPodsOfOneNameAreTold(t *testing.T) {
	k, _, events, _ := grounded(t, func(*Config) {})
	pod := func(uid types.UID) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "ns", UID: uid},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "app:1"}}}}
	}
	k.SetStatic([]*corev1.Pod{pod("u-x"), pod("u-y")})
	require.Contains(t, told(t, events), "Warning FailedValidation ")
}

func TestGarbageThatStaysIsTold(t *testing.T) {
	clk, events, dir := clocktesting.NewFakeClock(time.Now()), newAbout(), t.TempDir()
	container := fake.New(clk)
	k, err := New(Config{
		NodeName: "n", NodeIPs: []net.IP{net.IPv4(10, 0, 0, 1)}, RootDir: filepath.Join(dir, "root"),
		PodLogsDir: filepath.Join(dir, "log"),
	}, Deps{Runtime: container, Recorder: events, Clock: clk, Logger: testlog.New(t, slog.DiscardHandler)})
	require.NoError(t, err)
	k.StartGarbageCollection()
	defer func() { require.NoError(t, k.Close()) }()
	container.FailNext("ListPodSandbox", errors.New("no answer"))
	require.Eventually(t, clk.HasWaiters, time.Minute, time.Millisecond)
	var event string
	require.Eventually(t, func() bool {
		clk.Step(ContainerGCPeriod)
		select {
		case event = <-events.Events:
			return true
		default:
			return false
		}
	}, time.Minute, time.Millisecond)
	require.Equal(t, "Warning ContainerGCFailed list sandboxes: no answer", event)
	require.Equal(t, node.Reference("n"), events.objects[0])
}
