package kubelet

import (
	"context"
	"testing"

	v1 "github.com/google/cadvisor/info/v1"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/kubelet/cadvisor"
	"github.com/berth-dev/berth/kubelet/node"
)

// oomMachine is a machine whose kernel kills processes.
type oomMachine struct {
	cadvisor.Interface
	kills map[string]v1.OomKillEventData
}

// WatchOOM implements cadvisor.Interface.
func (m oomMachine) WatchOOM(_ context.Context, report func(name string, killed v1.OomKillEventData)) error {
	for name, killed := range m.kills {
		report(name, killed)
	}
	return nil
}

// objectRecorder is a recorder that keeps the objects of events.
type objectRecorder struct {
	record.FakeRecorder
	objects []runtime.Object
}

// Event implements record.EventRecorder.
func (r *objectRecorder) Event(object runtime.Object, kind, reason, message string) {
	r.objects = append(r.objects, object)
	r.FakeRecorder.Event(object, kind, reason, message)
}

// Eventf implements record.EventRecorder.
func (r *objectRecorder) Eventf(object runtime.Object, kind, reason, format string, args ...any) {
	r.objects = append(r.objects, object)
	r.FakeRecorder.Eventf(object, kind, reason, format, args...)
}

func newObjectRecorder() *objectRecorder {
	return &objectRecorder{FakeRecorder: *record.NewFakeRecorder(10)}
}

func TestSystemOOMIsAnEventOfTheNode(t *testing.T) {
	events := newObjectRecorder()
	watcher := NewOOMWatcher(oomMachine{kills: map[string]v1.OomKillEventData{
		"/": {Pid: 42, ProcessName: "stress"}, "/kubepods/podx/c": {Pid: 7, ProcessName: "app"},
	}}, events)
	require.NoError(t, watcher.Start(node.Reference("n")))
	require.Equal(t, "Warning SystemOOM System OOM encountered, victim process: stress, pid: 42", <-events.Events)
	require.Empty(t, events.Events, "a container that reaches its own limit makes no event")
	require.Equal(t, []runtime.Object{node.Reference("n")}, events.objects)
	require.ErrorContains(t, watcher.Start(nil), "a machine")
}
