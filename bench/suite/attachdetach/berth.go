package attachdetach

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/attachdetach/cache"
	"github.com/berth-dev/berth/attachdetach/reconciler"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

// safetyPeriod is the time between passes over everything, as package attachdetach has it.
const safetyPeriod = verifyPeriod

// berth is ours.
type berth struct {
	desired *cache.Desired
	actual  *cache.Actual
	engine  *reconciler.Engine
}

func newBerth(s *storage, names []types.NodeName) (controllerUnderTest, error) {
	plugins := operationexecutor.Plugins{berthPlugin{s}}
	lister, err := nodes(names)
	if err != nil {
		return nil, err
	}
	w := &berth{desired: cache.NewDesiredStateOfWorld(plugins)}
	if w.actual, err = cache.NewActualStateOfWorld(cache.Deps{Plugins: plugins}); err != nil {
		return nil, err
	}
	executor, err := operationexecutor.NewOperationExecutor(operationexecutor.Deps{
		Plugins: plugins, Recorder: &record.FakeRecorder{},
		Nodes: func(_ context.Context, node types.NodeName) (*corev1.Node, error) {
			return readyNode(string(node)), nil
		},
	}, operationexecutor.Config{})
	if err != nil {
		return nil, err
	}
	w.engine, err = reconciler.New(reconciler.Deps{
		Desired: w.desired, Actual: w.actual, Executor: executor, Nodes: lister, Recorder: &record.FakeRecorder{},
		Updater: berthUpdater{s: s, actual: w.actual},
	}, reconciler.Config{LoopPeriod: safetyPeriod, MaxWaitForUnmount: maxWaitForUnmount, SyncDuration: verifyPeriod})
	return w, err
}

func (w *berth) addNode(node types.NodeName) { w.desired.AddNode(node) }

func (w *berth) want(d *disk, node types.NodeName) error {
	_, err := w.desired.AddPod(d.pod.UID, d.pod, &volume.Spec{Name: d.pv.Name, PV: d.pv}, node)
	return err
}

func (w *berth) unwant(d *disk, node types.NodeName) {
	w.desired.DeletePod(d.pod.UID, d.unique(), node)
}

func (w *berth) attached(d *disk, node types.NodeName) error {
	return w.actual.MarkVolumeAsAttached(d.unique(), &volume.Spec{Name: d.pv.Name, PV: d.pv}, node, "")
}

func (w *berth) unmounted(node types.NodeName) { w.actual.SetVolumesMountedByNode(nil, node) }

func (w *berth) run(ctx context.Context) error { return w.engine.Start(ctx) }

// berthPlugin attaches at once.
type berthPlugin struct{ s *storage }

var _ operationexecutor.AttachablePlugin = berthPlugin{}

// Name implements operationexecutor.AttachablePlugin.
func (berthPlugin) Name() string { return pluginName }

// CanAttach implements operationexecutor.AttachablePlugin.
func (berthPlugin) CanAttach(spec *volume.Spec) (bool, error) { return spec.PV != nil, nil }

// VolumeName implements operationexecutor.AttachablePlugin.
func (berthPlugin) VolumeName(spec *volume.Spec) (string, error) { return spec.PV.Name, nil }

// Attach implements operationexecutor.AttachablePlugin.
func (p berthPlugin) Attach(_ context.Context, spec *volume.Spec, _ types.NodeName) (string, error) {
	p.s.attach(spec.PV.Name)
	return "", nil
}

// Detach implements operationexecutor.AttachablePlugin.
func (p berthPlugin) Detach(_ context.Context, _ string, node types.NodeName) error {
	p.s.detach(node)
	return nil
}

// Verify implements operationexecutor.AttachablePlugin: it looks at nothing.
func (berthPlugin) Verify(context.Context, []operationexecutor.AttachedVolume, types.NodeName,
) (map[corev1.UniqueVolumeName]operationexecutor.Verdict, error) {
	return nil, nil
}

// berthUpdater counts the writes of nodes' statuses.
type berthUpdater struct {
	s      *storage
	actual *cache.Actual
}

// UpdateNodeStatuses implements statusupdater.NodeStatusUpdater.
func (u berthUpdater) UpdateNodeStatuses(ctx context.Context) error {
	for _, node := range u.actual.GetNodesToUpdateStatusFor() {
		if err := u.UpdateNodeStatusForNode(ctx, node); err != nil {
			return err
		}
	}
	return nil
}

// UpdateNodeStatusForNode implements statusupdater.NodeStatusUpdater.
func (u berthUpdater) UpdateNodeStatusForNode(_ context.Context, node types.NodeName) error {
	if flagged, _ := u.actual.GetVolumesToReportAttachedForNode(node); flagged {
		u.s.write(node)
	}
	return nil
}
