package attachdetach

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/volume/attachdetach/cache"
	"k8s.io/kubernetes/pkg/controller/volume/attachdetach/reconciler"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/util/operationexecutor"
	volumetypes "k8s.io/kubernetes/pkg/volume/util/types"
)

// loopPeriod is what kube-controller-manager uses.
const loopPeriod = 100 * time.Millisecond

// kubernetes is the reconciler of kube-controller-manager.
type kubernetes struct {
	desired    cache.DesiredStateOfWorld
	actual     cache.ActualStateOfWorld
	reconciler reconciler.Reconciler
	log        klog.Logger
}

func newKubernetes(s *storage, names []types.NodeName) (controllerUnderTest, error) {
	klog.SetLogger(logr.Discard()) // it writes a line for each operation
	lister, err := nodes(names)
	if err != nil {
		return nil, err
	}
	plugins := &volume.VolumePluginMgr{}
	err = plugins.InitPlugins([]volume.VolumePlugin{kubernetesPlugin{s: s}}, nil, struct{ volume.VolumeHost }{})
	if err != nil {
		return nil, fmt.Errorf("register plugin: %w", err)
	}
	client := &fake.Clientset{}
	client.AddReactor("get", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return true, readyNode(action.(clienttesting.GetAction).GetName()), nil
	})
	w := &kubernetes{
		desired: cache.NewDesiredStateOfWorld(plugins), actual: cache.NewActualStateOfWorld(plugins), log: logr.Discard(),
	}
	executor := operationexecutor.NewOperationExecutor(
		operationexecutor.NewOperationGenerator(client, plugins, &record.FakeRecorder{}, nil))
	w.reconciler = reconciler.NewReconciler(loopPeriod, maxWaitForUnmount, verifyPeriod, false, false, w.desired, w.actual,
		executor, kubernetesUpdater{s: s, actual: w.actual}, lister, &record.FakeRecorder{})
	return w, nil
}

func (w *kubernetes) addNode(node types.NodeName) { w.desired.AddNode(node) }

func podName(d *disk) volumetypes.UniquePodName { return volumetypes.UniquePodName(d.pod.UID) }

func (w *kubernetes) want(d *disk, node types.NodeName) error {
	_, err := w.desired.AddPod(podName(d), d.pod, volume.NewSpecFromPersistentVolume(d.pv, false), node)
	return err
}

func (w *kubernetes) unwant(d *disk, node types.NodeName) {
	w.desired.DeletePod(podName(d), d.unique(), node)
}

func (w *kubernetes) attached(d *disk, node types.NodeName) error {
	return w.actual.MarkVolumeAsAttached(w.log, d.unique(), volume.NewSpecFromPersistentVolume(d.pv, false), node, "")
}

func (w *kubernetes) unmounted(node types.NodeName) {
	w.actual.SetVolumesMountedByNode(w.log, nil, node)
}

func (w *kubernetes) run(ctx context.Context) error {
	w.reconciler.Run(ctx)
	return nil
}

// kubernetesPlugin attaches at once. What is not overridden is never called.
type kubernetesPlugin struct {
	volume.AttachableVolumePlugin
	s *storage
}

// Init implements volume.VolumePlugin.
func (kubernetesPlugin) Init(volume.VolumeHost) error { return nil }

// GetPluginName implements volume.VolumePlugin.
func (kubernetesPlugin) GetPluginName() string { return pluginName }

// GetVolumeName implements volume.VolumePlugin.
func (kubernetesPlugin) GetVolumeName(spec *volume.Spec) (string, error) {
	return spec.PersistentVolume.Name, nil
}

// CanSupport implements volume.VolumePlugin.
func (kubernetesPlugin) CanSupport(*volume.Spec) bool { return true }

// CanAttach implements volume.AttachableVolumePlugin.
func (kubernetesPlugin) CanAttach(*volume.Spec) (bool, error) { return true, nil }

// VerifyExhaustedResource implements volume.AttachableVolumePlugin.
func (kubernetesPlugin) VerifyExhaustedResource(*volume.Spec) bool { return false }

// NewAttacher implements volume.AttachableVolumePlugin.
func (p kubernetesPlugin) NewAttacher() (volume.Attacher, error) {
	return kubernetesAttacher{s: p.s}, nil
}

// NewDetacher implements volume.AttachableVolumePlugin.
func (p kubernetesPlugin) NewDetacher() (volume.Detacher, error) {
	return kubernetesDetacher{s: p.s}, nil
}

type kubernetesAttacher struct {
	volume.Attacher
	s *storage
}

// Attach implements volume.Attacher.
func (a kubernetesAttacher) Attach(spec *volume.Spec, _ types.NodeName) (string, error) {
	a.s.attach(spec.PersistentVolume.Name)
	return "", nil
}

// VolumesAreAttached implements volume.Attacher.
func (kubernetesAttacher) VolumesAreAttached(specs []*volume.Spec, _ types.NodeName) (map[*volume.Spec]bool, error) {
	all := make(map[*volume.Spec]bool, len(specs))
	for _, spec := range specs {
		all[spec] = true
	}
	return all, nil
}

type kubernetesDetacher struct {
	volume.Detacher
	s *storage
}

// Detach implements volume.Detacher.
func (d kubernetesDetacher) Detach(_ string, node types.NodeName) error {
	d.s.detach(node)
	return nil
}

// kubernetesUpdater counts the writes of nodes' statuses.
type kubernetesUpdater struct {
	s      *storage
	actual cache.ActualStateOfWorld
}

// UpdateNodeStatuses implements statusupdater.NodeStatusUpdater.
func (u kubernetesUpdater) UpdateNodeStatuses(log klog.Logger) error {
	for node := range u.actual.GetVolumesToReportAttached(log) {
		u.s.write(node)
	}
	return nil
}

// UpdateNodeStatusForNode implements statusupdater.NodeStatusUpdater.
func (u kubernetesUpdater) UpdateNodeStatusForNode(log klog.Logger, node types.NodeName) error {
	if flagged, _ := u.actual.GetVolumesToReportAttachedForNode(log, node); flagged {
		u.s.write(node)
	}
	return nil
}
