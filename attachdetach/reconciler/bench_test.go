package reconciler_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/attachdetach/cache"
	"github.com/berth-dev/berth/attachdetach/reconciler"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

// instantPlugin is a plugin that attaches at once and says when.
type instantPlugin struct {
	*fakeStorage
	attached chan string
	detached chan string
}

func (i *instantPlugin) Attach(_ context.Context, spec *volume.Spec, _ types.NodeName) (string, error) {
	i.attached <- spec.PV.Name
	return "", nil
}

func (i *instantPlugin) Detach(_ context.Context, disk string, _ types.NodeName) error {
	i.detached <- disk
	return nil
}

// noopUpdater writes nothing, at once.
type noopUpdater struct{ actual *cache.Actual }

func (n noopUpdater) UpdateNodeStatuses(context.Context) error { return nil }
func (n noopUpdater) UpdateNodeStatusForNode(_ context.Context, node types.NodeName) error {
	n.actual.GetVolumesToReportAttachedForNode(node)
	return nil
}

// BenchmarkReaction is the time from a Pod that wants a disk to the attach call, and from the Pod's end to the detach
// call, with the given number of nodes and attached volumes a node around.
func BenchmarkReaction(b *testing.B) {
	for _, size := range []struct{ nodes, volumes int }{{10, 20}, {1000, 20}, {5000, 20}} {
		b.Run(fmt.Sprintf("nodes=%d/volumes=%d", size.nodes, size.volumes), func(b *testing.B) {
			plugin := &instantPlugin{fakeStorage: newFakeStorage(), attached: make(chan string, 1), detached: make(chan string, 1)}
			plugins := operationexecutor.Plugins{plugin}
			desired := cache.NewDesiredStateOfWorld(plugins)
			actual, err := cache.NewActualStateOfWorld(cache.Deps{Plugins: plugins})
			require.NoError(b, err)
			executor, err := operationexecutor.NewOperationExecutor(operationexecutor.Deps{
				Plugins: plugins,
				Nodes:   func(context.Context, types.NodeName) (*corev1.Node, error) { return &corev1.Node{}, nil },
			}, operationexecutor.Config{})
			require.NoError(b, err)
			engine, err := reconciler.New(reconciler.Deps{
				Desired: desired, Actual: actual, Executor: executor, Updater: noopUpdater{actual},
			}, reconciler.Config{LoopPeriod: time.Hour, MaxWaitForUnmount: maxWait})
			require.NoError(b, err)
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "p"}}
			for n := range size.nodes {
				node := types.NodeName(fmt.Sprint("node", n))
				desired.AddNode(node)
				for v := range size.volumes {
					spec := disk(fmt.Sprint("disk", n, "-", v))
					name, err := desired.AddPod("p", pod, spec, node)
					require.NoError(b, err)
					require.NoError(b, actual.MarkVolumeAsAttached(name, spec, node, ""))
				}
			}
			ctx, cancel := context.WithCancel(context.Background())
			var running sync.WaitGroup
			running.Go(func() { _ = engine.Start(ctx) })
			defer running.Wait()
			defer cancel()
			// Warm: the first pass over everything is over when a disk that comes last is attached.
			spec := disk("probe")
			cycle := func() {
				_, _ = desired.AddPod("q", pod, spec, "node0")
				<-plugin.attached
				for actual.GetAttachState(unique("probe"), "node0") != cache.AttachStateAttached ||
					executor.IsOperationPending(unique("probe"), "") {
				}
				actual.SetVolumesMountedByNode(nil, "node0")
				desired.DeletePod("q", unique("probe"), "node0")
				<-plugin.detached
				for actual.GetAttachState(unique("probe"), "node0") != cache.AttachStateDetached ||
					executor.IsOperationPending(unique("probe"), "") {
				}
			}
			cycle()
			b.ReportAllocs()
			for b.Loop() {
				cycle()
			}
		})
	}
}

// BenchmarkSafetyPass is what one pass over everything costs at 1,000 nodes with 20 attached volumes each, when there is
// nothing to do: by default it happens once a minute.
func BenchmarkSafetyPass(b *testing.B) {
	w := newFixture(b)
	for n := range 1000 {
		node := types.NodeName(fmt.Sprint("node", n))
		w.desired.AddNode(node)
		for v := range 20 {
			spec := disk(fmt.Sprint("disk", n, "-", v))
			w.pod("ns", "p", node, spec)
			require.NoError(b, w.actual.MarkVolumeAsAttached(unique(spec.Name), spec, node, ""))
		}
	}
	w.actual.GetVolumesToReportAttached()
	stop := make(chan struct{})
	close(stop)
	b.ReportAllocs()
	for b.Loop() {
		w.engine.Run(stop) // one pass over everything
	}
}
