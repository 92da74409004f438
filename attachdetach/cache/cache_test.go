package cache_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/attachdetach/cache"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

// plugin is for volumes of CSI drivers; it attaches nothing.
type plugin struct {
	operationexecutor.AttachablePlugin
}

func (plugin) Name() string                                 { return "kubernetes.io/csi" }
func (plugin) CanAttach(spec *volume.Spec) (bool, error)    { return spec.PV != nil, nil }
func (plugin) VolumeName(spec *volume.Spec) (string, error) { return "drv^" + spec.PV.Name, nil }
func (plugin) Attach(context.Context, *volume.Spec, types.NodeName) (string, error) {
	panic("not called")
}

var plugins = operationexecutor.Plugins{plugin{}}

func spec(name string) *volume.Spec {
	return &volume.Spec{Name: name, PV: &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}}
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
}

const v = corev1.UniqueVolumeName("kubernetes.io/csi/drv^v")

// B-15, and the counters of the metrics.
func TestDesired(t *testing.T) {
	d := cache.NewDesiredStateOfWorld(plugins)
	var notified []cache.VolumeNode
	d.Subscribe(func(p cache.VolumeNode) { notified = append(notified, p) })
	_, err := d.AddPod("p", pod("p"), spec("v"), "a")
	require.ErrorContains(t, err, `node "a" is not managed`)
	require.NoError(t, d.DeleteNode("unknown"))
	d.AddNode("a")
	d.AddNode("a")
	_, err = d.AddPod("p", pod("p"), &volume.Spec{Name: "x", Volume: &corev1.Volume{}}, "a")
	require.ErrorIs(t, err, operationexecutor.ErrNotAttachable)
	require.Empty(t, notified)
	for range 2 {
		name, err := d.AddPod("p", pod("p"), spec("v"), "a")
		require.NoError(t, err)
		require.Equal(t, v, name)
	}
	require.Equal(t, []cache.VolumeNode{{Volume: v, Node: "a"}}, notified, "a repetition is no change")
	_, err = d.AddPod("p", pod("p"), spec("w"), "a")
	require.NoError(t, err)
	_, err = d.AddPod("q", pod("q"), spec("v"), "a")
	require.NoError(t, err)
	require.Len(t, d.GetPodToAdd(), 3)
	require.Len(t, d.GetVolumesToAttach(), 2)
	require.ElementsMatch(t, []cache.VolumeNode{{Volume: v, Node: "a"}, {Volume: "kubernetes.io/csi/drv^w", Node: "a"}},
		d.GetVolumeNodesToAttach())
	require.Equal(t, cache.Count{"kubernetes.io/csi:drv": 2}, d.Counts())
	require.Equal(t, map[types.NodeName]cache.Count{"a": {"kubernetes.io/csi:drv": 3}}, d.CountsPerNode())
	require.ErrorContains(t, d.DeleteNode("a"), "2 volumes")
	require.True(t, d.NodeExists("a"))

	d.SetMultiAttachError(v, "a")
	want, _ := d.GetVolumeToAttach(v, "a")
	require.True(t, want.MultiAttachErrorReported)
	_, err = d.AddPod("r", pod("r"), spec("v"), "a")
	require.NoError(t, err)
	want, _ = d.GetVolumeToAttach(v, "a")
	require.False(t, want.MultiAttachErrorReported)
	require.Equal(t, []*corev1.Pod{pod("r")}, want.PodsToNotify)
	_, err = d.AddPod("s", pod("s"), spec("v"), "a")
	require.NoError(t, err)
	d.MarkPodsNotified(v, "a", want.PodsToNotify)
	want, _ = d.GetVolumeToAttach(v, "a")
	require.Equal(t, []*corev1.Pod{pod("s")}, want.PodsToNotify, "a Pod that came meanwhile is yet to be notified")
	d.DeletePod("s", v, "a")
	require.Equal(t, []*corev1.Pod{pod("p"), pod("q"), pod("r")}, d.GetVolumePodsOnNodes([]types.NodeName{"a", "b"}, v))

	for _, name := range []types.UID{"p", "q", "r", "unknown"} {
		d.SetMultiAttachError(v, "a")
		d.DeletePod(name, v, "a")
	}
	require.False(t, d.VolumeExists(v, "a"))
	// what was reported goes with the wish.
	_, err = d.AddPod("p", pod("p"), spec("v"), "a")
	require.NoError(t, err)
	want, _ = d.GetVolumeToAttach(v, "a")
	require.Equal(t, []*corev1.Pod{pod("p")}, want.PodsToNotify)
	d.DeletePod("p", v, "a")
	d.DeletePod("p", "kubernetes.io/csi/drv^w", "a")
	require.Empty(t, d.Counts())
	require.Empty(t, d.CountsPerNode())
	require.NoError(t, d.DeleteNode("a"))
	require.False(t, d.NodeExists("a"))
}

// B-8, B-9.
func TestActual(t *testing.T) {
	clock := testclock.NewFakeClock(time.Now())
	a, err := cache.NewActualStateOfWorld(cache.Deps{Plugins: plugins, Clock: clock})
	require.NoError(t, err)
	_, err = a.AddVolumeNode("", nil, "a", "", true)
	require.ErrorContains(t, err, "neither a name nor a spec")
	_, err = a.AddVolumeNode("", &volume.Spec{Volume: &corev1.Volume{}}, "a", "", true)
	require.ErrorIs(t, err, operationexecutor.ErrNotAttachable)
	_, err = a.SetDetachRequestTime(v, "a")
	require.ErrorContains(t, err, "no longer attached to the node")
	a.AddVolumeToReportAsAttached(v, "a")
	a.SetNodeStatusUpdateNeeded("a")
	a.MarkVolumeAsDetached(v, "a")
	require.Empty(t, a.GetNodesToUpdateStatusFor())

	name, err := a.AddVolumeNode("", spec("v"), "a", "/dev/a", true)
	require.NoError(t, err)
	require.Equal(t, v, name)
	require.NoError(t, a.MarkVolumeAsAttached(v, nil, "b", "/dev/b"))
	at, _ := a.GetAttachedVolume(v, "a")
	require.True(t, at.MountedByNode, "a new attachment may be mounted")
	require.Equal(t, "/dev/a", at.DevicePath, "each node has its own path")
	require.Equal(t, map[types.NodeName][]corev1.AttachedVolume{
		"a": {{Name: v, DevicePath: "/dev/a"}}, "b": {{Name: v, DevicePath: "/dev/b"}},
	}, a.GetVolumesToReportAttached())
	require.Empty(t, a.GetVolumesToReportAttached(), "the flags are taken away")

	a.SetVolumesMountedByNode([]corev1.UniqueVolumeName{"unknown"}, "a")
	_, err = a.SetDetachRequestTime(v, "a")
	require.NoError(t, err)
	clock.Step(time.Second)
	elapsed, err := a.SetDetachRequestTime(v, "a")
	require.NoError(t, err)
	require.Equal(t, time.Second, elapsed)
	require.NoError(t, a.MarkVolumeAsUncertain(v, nil, "a"))
	at, _ = a.GetAttachedVolume(v, "a")
	require.False(t, at.MountedByNode, "a known attachment keeps what the node said")
	require.False(t, at.DetachRequestedTime.IsZero())
	require.NotNil(t, at.VolumeSpec, "and its volume")
	require.Equal(t, cache.AttachStateUncertain, a.GetAttachState(v, "a"))
	require.Equal(t, []types.NodeName{"b"}, a.GetNodesForAttachedVolume(v))
	require.Equal(t, []types.NodeName{"a", "b"}, a.GetNodesForPossiblyAttachedVolume(v))
	require.Len(t, a.GetAttachedVolumesPerNode(), 1)
	require.Len(t, a.GetAttachedVolumes(), 2)
	require.Empty(t, a.GetNodesToUpdateStatusFor(), "uncertainty by itself does not change the list")

	require.NoError(t, a.RemoveVolumeFromReportAsAttached(v, "a"))
	require.Error(t, a.RemoveVolumeFromReportAsAttached(v, "a"))
	flagged, list := a.GetVolumesToReportAttachedForNode("a")
	require.True(t, flagged)
	require.Empty(t, list)
	require.Equal(t, cache.Count{"kubernetes.io/csi:drv": 2}, a.Counts())
	a.DeleteVolumeNode(v, "a")
	a.DeleteVolumeNode(v, "b")
	require.Equal(t, cache.AttachStateDetached, a.GetAttachState(v, "a"))
	require.Equal(t, []types.NodeName{"b"}, a.GetNodesToUpdateStatusFor(), "a's list did not change")
	require.Empty(t, a.Counts())
}

// a node whose last attachment ends while its list is being written is flagged again if that write fails.
func TestWriteThatFailsAfterTheLastAttachment(t *testing.T) {
	a, err := cache.NewActualStateOfWorld(cache.Deps{Plugins: plugins})
	require.NoError(t, err)
	require.NoError(t, a.MarkVolumeAsAttached(v, spec("v"), "a", ""))
	a.GetVolumesToReportAttached()
	a.ForgetNode("a") // written
	require.NoError(t, a.RemoveVolumeFromReportAsAttached(v, "a"))
	flagged, _ := a.GetVolumesToReportAttachedForNode("a")
	require.True(t, flagged)
	a.MarkVolumeAsDetached(v, "a")
	a.SetNodeStatusUpdateNeeded("a") // not written
	flagged, list := a.GetVolumesToReportAttachedForNode("a")
	require.True(t, flagged, "the status still lists the volume")
	require.Empty(t, list)
	a.ForgetNode("a")
	a.SetNodeStatusUpdateNeeded("a")
	require.Empty(t, a.GetNodesToUpdateStatusFor(), "written, and nothing is known of the node any more")
}

// B-13, B-12: a verdict on what has changed since is not applied.
func TestVerdicts(t *testing.T) {
	a, err := cache.NewActualStateOfWorld(cache.Deps{Plugins: plugins})
	require.NoError(t, err)
	require.NoError(t, a.MarkVolumeAsAttached(v, spec("v"), "a", ""))
	old, _ := a.GetAttachedVolume(v, "a")
	require.NoError(t, a.MarkVolumeAsAttached(v, spec("v"), "a", ""))
	require.False(t, a.ApplyVerdict(v, "a", old.Generation, operationexecutor.VerdictDetached))
	now, _ := a.GetAttachedVolume(v, "a")
	require.False(t, a.ApplyVerdict(v, "a", now.Generation, operationexecutor.VerdictAttached))
	require.True(t, a.ApplyVerdict(v, "a", now.Generation, operationexecutor.VerdictUncertain))
	require.Equal(t, cache.AttachStateUncertain, a.GetAttachState(v, "a"))
	now, _ = a.GetAttachedVolume(v, "a")
	require.True(t, a.ApplyVerdict(v, "a", now.Generation, operationexecutor.VerdictDetached))
	require.Equal(t, cache.AttachStateDetached, a.GetAttachState(v, "a"))
}

// B-18: what the status says is compared with what it should say.
func TestCheckReport(t *testing.T) {
	a, err := cache.NewActualStateOfWorld(cache.Deps{Plugins: plugins})
	require.NoError(t, err)
	require.NoError(t, a.MarkVolumeAsAttached(v, spec("v"), "a", "/dev/v"))
	a.GetVolumesToReportAttached()
	a.ReconcileReported("a", []corev1.AttachedVolume{{Name: v, DevicePath: "/dev/v"}})
	require.Empty(t, a.GetNodesToUpdateStatusFor())
	a.ReconcileReported("a", nil)
	require.Equal(t, []types.NodeName{"a"}, a.GetNodesToUpdateStatusFor())
	a.ReconcileReported("b", []corev1.AttachedVolume{{Name: v}})
	require.Equal(t, map[types.NodeName][]corev1.AttachedVolume{
		"a": {{Name: v, DevicePath: "/dev/v"}}, "b": {},
	}, a.GetVolumesToReportAttached(), "a list that should be empty is written as such")
}
