package explain_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/timeline"
)

func before(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

// diskPod is a Pod on n1 with a bound claim on a CSI volume, and what belongs to it.
func diskPod(drivers ...string) (*corev1.Pod, []runtime.Object) {
	p := pod(withClaim)
	p.Spec.NodeName = "n1"
	claim := claimFor(ptr.To("disks"))
	claim.Spec.VolumeName, claim.Status.Phase = "pv-1", corev1.ClaimBound
	csiNode := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	for _, driver := range drivers {
		csiNode.Spec.Drivers = append(csiNode.Spec.Drivers, storagev1.CSINodeDriver{Name: driver})
	}
	return p, []runtime.Object{claim, csiNode, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"},
		Spec: corev1.PersistentVolumeSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "disk.example"}}}}}
}

func attachment(node string, change func(*storagev1.VolumeAttachment)) *storagev1.VolumeAttachment {
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "csi-" + node, CreationTimestamp: before(time.Hour)},
		Spec: storagev1.VolumeAttachmentSpec{NodeName: node, Attacher: "disk.example",
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("pv-1")}}}
	if change != nil {
		change(a)
	}
	return a
}

func TestVolumesOfDrivers(t *testing.T) {
	for name, test := range map[string]struct {
		drivers      []string
		objects      []runtime.Object
		reason, says string
	}{
		"driver not registered": {reason: "DriverNotRegistered", says: "needs CSI driver disk.example, which is not registered on node n1"},
		"held by another node": {drivers: []string{"disk.example"}, reason: "VolumeHeld",
			says: "volume pv-1 is attached to node n2 for 1h0m0s (last heartbeat of that node 41.0 s ago)",
			objects: []runtime.Object{attachment("n2", nil), &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "n2"},
				Spec:       coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: now.Add(-41 * time.Second)}}}}},
		"being detached": {drivers: []string{"disk.example"}, reason: "VolumeHeld", says: "it is being detached",
			objects: []runtime.Object{attachment("n2", func(a *storagev1.VolumeAttachment) {
				a.DeletionTimestamp, a.Finalizers = ptr.To(before(time.Second)), []string{"external-attacher/disk-example"}
			})}},
		"driver call failing": {drivers: []string{"disk.example"}, reason: "FailedAttachVolume", says: "to node n1: rpc error: no slot left",
			objects: []runtime.Object{attachment("n1", func(a *storagev1.VolumeAttachment) {
				a.Status.AttachError = &storagev1.VolumeError{Message: "rpc error: no slot left"}
			})}},
	} {
		t.Run(name, func(t *testing.T) {
			p, objects := diskPod(test.drivers...)
			explanation := ask(t, scene{pod: p, objects: append(objects, test.objects...)})
			require.Equal(t, test.reason, explanation.Reason, explanation.Verdict)
			require.Contains(t, explanation.Verdict, test.says)
			require.NotEmpty(t, explanation.HeldBy)
			require.NotEmpty(t, explanation.Evidence)
		})
	}
}

// TestDriversOfANodeThatCannotBeRead has two volumes, whose drivers are not taken for missing.
func TestDriversOfANodeThatCannotBeRead(t *testing.T) {
	p, objects := diskPod("disk.example")
	second := objects[0].DeepCopyObject().(*corev1.PersistentVolumeClaim)
	second.Name, second.UID = "more", "more"
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "w", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: second.Name}}})
	client := fake.NewClientset(append(objects, p, second, node(corev1.ConditionTrue))...)
	client.PrependReactor("get", "csinodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("no answer")
	})
	explanation, err := explain.Pod(t.Context(), source(client, nil), "default", "web")
	require.NoError(t, err)
	require.NotEqual(t, "DriverNotRegistered", explanation.Reason, explanation.Verdict)
}

func TestAHangingDriverIsNamed(t *testing.T) {
	p, objects := diskPod("disk.example")
	explanation := ask(t, scene{pod: p, objects: objects, record: func(rec *timeline.Recorder, ref timeline.Ref) {
		rec.Begin(ref, "attachdetach", timeline.StageAttach, "v")
	}})
	require.Equal(t, "AttachVolume", explanation.Reason)
	require.Contains(t, explanation.Verdict, "waiting 3.0 s: volume v is being attached")
	require.Equal(t, "attachdetach", explanation.HeldBy)
}

func TestOtherKinds(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "default", Name: "x", UID: "x", CreationTimestamp: before(30 * time.Second)}
	volume := func(phase corev1.PersistentVolumePhase, policy corev1.PersistentVolumeReclaimPolicy) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Status: corev1.PersistentVolumeStatus{Phase: phase},
			Spec: corev1.PersistentVolumeSpec{PersistentVolumeReclaimPolicy: policy,
				ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: "data"}}}
	}
	cordoned, silent := node(corev1.ConditionTrue), node(corev1.ConditionUnknown)
	cordoned.Spec.Unschedulable = true
	voter, routeless := node(corev1.ConditionTrue), node(corev1.ConditionTrue)
	voter.Status.Conditions = append(voter.Status.Conditions, corev1.NodeCondition{Type: "EtcdIsVoter", Status: corev1.ConditionTrue})
	routeless.Status.Conditions = append(routeless.Status.Conditions,
		corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Message: "no routes"})
	for name, test := range map[string]struct {
		kind, name   string
		object       runtime.Object
		state        explain.State
		reason, says string
	}{
		"bound volume":    {explain.KindVolume, "x", volume(corev1.VolumeBound, ""), explain.Ready, "Bound", "bound to claim default/data"},
		"kept volume":     {explain.KindVolume, "x", volume(corev1.VolumeReleased, corev1.PersistentVolumeReclaimRetain), explain.Waiting, "Released", "kept with its data"},
		"volume to go":    {explain.KindVolume, "x", volume(corev1.VolumeReleased, corev1.PersistentVolumeReclaimDelete), explain.Waiting, "Released", "its provisioner has to delete it"},
		"failed volume":   {explain.KindVolume, "x", volume(corev1.VolumeFailed, ""), explain.Failed, "Failed", "failed"},
		"cordoned node":   {explain.KindNode, "n1", cordoned, explain.Waiting, "Cordoned", "the scheduler puts no new pods there"},
		"silent node":     {explain.KindNode, "n1", silent, explain.Waiting, "NodeNotReady", "not ready for 5.0 s: network is down"},
		"pressed node":    {explain.KindNode, "n1", pressed(node(corev1.ConditionTrue)), explain.Waiting, "NodePressure", "takes no new pods: DiskPressure (less"},
		"routeless node":  {explain.KindNode, "n1", routeless, explain.Waiting, "NodePressure", "takes no new pods: NetworkUnavailable (no routes)"},
		"voting node":     {explain.KindNode, "n1", voter, explain.Ready, "Ready", "ready"},
		"quota":           {explain.KindReplicaSet, "x", &appsv1.ReplicaSet{ObjectMeta: meta, Status: appsv1.ReplicaSetStatus{Conditions: []appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: "exceeded quota: small"}}}}, explain.Waiting, "FailedCreate", "exceeded quota: small"},
		"complete set":    {explain.KindReplicaSet, "x", &appsv1.ReplicaSet{ObjectMeta: meta, Status: appsv1.ReplicaSetStatus{Replicas: 1, ReadyReplicas: 1}}, explain.Ready, "Ready", "1 of 1 pods are ready"},
		"paused rollout":  {explain.KindDeployment, "x", &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Paused: true}}, explain.Waiting, "Paused", "its rollout is paused"},
		"claim without a": {explain.KindClaim, "data", claimFor(nil), explain.Waiting, "ClaimWithoutClass", "waiting 20.0 s: it names no storage class"},
	} {
		t.Run(name, func(t *testing.T) {
			namespace := ""
			if explain.Namespaced(test.kind) {
				namespace = "default"
			}
			src := explain.Source{Client: fake.NewClientset(test.object), Clock: clocktesting.NewFakePassiveClock(now)}
			explanation, err := explain.Explain(t.Context(), src, test.kind, namespace, test.name)
			require.NoError(t, err)
			require.Equal(t, test.reason, explanation.Reason, explanation.Verdict)
			require.Equal(t, test.state, explanation.State)
			require.Contains(t, explanation.Verdict, test.says)
		})
	}
}

func TestStuckListsTheWorstFirst(t *testing.T) {
	failed := pod(func(p *corev1.Pod) { p.Name, p.UID, p.Status.Phase = "broken", "broken", corev1.PodFailed })
	ready := pod(func(p *corev1.Pod) {
		p.Name, p.UID = "good", "good"
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	})
	src := explain.Source{Client: fake.NewClientset(pod(nil), failed, ready, claimFor(nil), node(corev1.ConditionTrue)),
		Clock: clocktesting.NewFakePassiveClock(now)}
	explanations, unseen, err := explain.Stuck(t.Context(), src, "", "")
	require.NoError(t, err)
	require.Empty(t, unseen)
	var names []string
	for _, explanation := range explanations {
		names = append(names, explanation.Object.Name)
	}
	require.Equal(t, []string{"broken", "data", "web"}, names, "failed first, then the oldest; what is well is left out")
}

func TestAStartIsAccountedFor(t *testing.T) {
	clock := clocktesting.NewFakeClock(now.Add(-time.Minute))
	rec := timeline.New(clock, 0)
	p := pod(nil)
	ref := timeline.PodRef(p)
	step := func(ms int) { clock.Step(time.Duration(ms) * time.Millisecond) }
	rec.Mark(ref, "api", timeline.StageAccepted, "", nil)
	scheduled := rec.Begin(ref, "scheduler", timeline.StageScheduled, "")
	step(20)
	scheduled.End(nil)
	step(3) // the watch
	rec.Mark(ref, "kubelet", timeline.StageSeen, "", nil)
	sandbox := rec.Begin(ref, "kubelet", timeline.StageSandbox, "")
	image := rec.Begin(ref, "kubelet", timeline.StageImage, "main")
	step(10)
	image.End(nil) // overlaps: it does not count
	step(90)
	sandbox.End(nil)
	start := rec.Begin(ref, "kubelet", timeline.StageStart, "main")
	step(50)
	start.End(nil)
	rec.Mark(ref, "kubelet", timeline.StageReady, "", nil)
	step(7)
	rec.Mark(ref, "api", timeline.StageObserved, "", nil)

	rec.NameTraces(func(ref timeline.Ref) string { return "trace of " + string(ref.UID) })
	explanation, err := explain.Pod(t.Context(), source(fake.NewClientset(p, node(corev1.ConditionTrue)), records{rec}), "default", "web")
	require.NoError(t, err)
	require.Equal(t, "trace of "+string(p.UID), explanation.Trace)
	want := []explain.Segment{{"Scheduled", "scheduler", 20}, {"watch: bound to kubelet", "api", 3}, {"Sandbox", "kubelet", 100},
		{"StartContainer main", "kubelet", 50}, {"status write and watch", "api", 7}}
	var got []explain.Segment
	for _, part := range explanation.TimeBreakdown.Segments {
		if part.Ms > 0 {
			got = append(got, part)
		}
	}
	require.Equal(t, want, got)
	require.InDelta(t, 180, explanation.TimeBreakdown.TotalMs, 1e-9)
	require.Zero(t, explanation.TimeBreakdown.UnaccountedMs)
}

func TestAnUnknownGapIsNotHidden(t *testing.T) {
	clock := clocktesting.NewFakeClock(now.Add(-time.Minute))
	rec := timeline.New(clock, 0)
	p := pod(nil)
	ref := timeline.PodRef(p)
	rec.Mark(ref, "api", timeline.StageAccepted, "", nil)
	rec.Mark(ref, "other", "SomethingNew", "", nil)
	clock.Step(40 * time.Millisecond)
	rec.Mark(ref, "api", timeline.StageObserved, "", nil)
	explanation, err := explain.Pod(t.Context(), source(fake.NewClientset(p, node(corev1.ConditionTrue)), records{rec}), "default", "web")
	require.NoError(t, err)
	require.InDelta(t, 40, explanation.TimeBreakdown.UnaccountedMs, 1e-9)
}

func TestParseKindSuggests(t *testing.T) {
	for word, want := range map[string]string{"po": explain.KindPod, "PVC": explain.KindClaim, "rs": explain.KindReplicaSet,
		"deployments.apps": explain.KindDeployment, "no": explain.KindNode, "pv": explain.KindVolume} {
		kind, err := explain.ParseKind(word)
		require.NoError(t, err)
		require.Equal(t, want, kind)
	}
	_, err := explain.ParseKind("ndoe")
	require.ErrorContains(t, err, `did you mean "node"?`)
}

func TestRareStates(t *testing.T) {
	lost := claimFor(ptr.To("disks"))
	lost.Spec.VolumeName, lost.Status.Phase = "pv-1", corev1.ClaimLost
	explanation := ask(t, scene{pod: pod(withClaim), objects: []runtime.Object{lost}})
	require.Equal(t, "ClaimLost", explanation.Reason)
	require.Contains(t, explanation.Verdict, "claim data (volume v) has lost its volume pv-1")

	explanation = ask(t, scene{pod: pod(nil), record: func(rec *timeline.Recorder, ref timeline.Ref) {
		rec.Begin(ref, "kubelet", timeline.StageVolume, "v")
	}})
	require.Equal(t, "MountVolume", explanation.Reason)
	require.Contains(t, explanation.Verdict, "waiting 3.0 s: volume v is being set up")

	full := node(corev1.ConditionTrue)
	full.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}
	src := explain.Source{Client: fake.NewClientset(full, pod(nil)), Clock: clocktesting.NewFakePassiveClock(now)}
	explanation, err := explain.Explain(t.Context(), src, explain.KindNode, "", "n1")
	require.NoError(t, err)
	require.Equal(t, "NodeFull", explanation.Reason)
	require.Contains(t, explanation.Verdict, "it runs 1 pods, and 1 is its limit")

	rec := timeline.New(clocktesting.NewFakePassiveClock(now), 0)
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "x", UID: "x"}, Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeReleased}}
	rec.Begin(timeline.RefOf(explain.KindVolume, pv), "provision", timeline.StageReclaim, "").End(errors.New("directory not empty"))
	src = explain.Source{Client: fake.NewClientset(pv), Records: records{rec}, Clock: clocktesting.NewFakePassiveClock(now)}
	explanation, err = explain.Explain(t.Context(), src, explain.KindVolume, "", "x")
	require.NoError(t, err)
	require.Equal(t, "DeleteFailed", explanation.Reason)
	require.Contains(t, explanation.Verdict, "it cannot be deleted (attempt 1): directory not empty")
}

// TestKubeletOfAnotherNode: the Pod is on another machine, whose kubelet has its own record. No other component is blamed
// for the time that it took.
func TestKubeletOfAnotherNode(t *testing.T) {
	for _, scheduled := range []bool{false, true} {
		clock := clocktesting.NewFakeClock(now.Add(-time.Minute))
		rec := timeline.New(clock, 0)
		p := pod(func(p *corev1.Pod) { p.Status.StartTime = &metav1.Time{Time: now} })
		ref := timeline.PodRef(p)
		rec.Mark(ref, "api", timeline.StageAccepted, "", nil)
		if scheduled {
			rec.Begin(ref, "scheduler", timeline.StageScheduled, "").End(nil)
		}
		clock.Step(300 * time.Millisecond)
		rec.Mark(ref, "api", timeline.StageObserved, "", nil)
		src := source(fake.NewClientset(p, node(corev1.ConditionTrue)), records{rec})
		explanation, err := explain.Pod(t.Context(), src, "default", "web")
		require.NoError(t, err)
		require.InDelta(t, 300, explanation.TimeBreakdown.UnaccountedMs, 1e-9)
		require.Len(t, explanation.Unseen, 1)
		require.Contains(t, explanation.Unseen[0], "not that of node n1")
		require.Contains(t, explanation.Unseen[0], "--socket")

		rec.Mark(ref, "kubelet", timeline.StageSeen, "", nil)
		explanation, err = explain.Pod(t.Context(), src, "default", "web")
		require.NoError(t, err)
		require.Empty(t, explanation.Unseen)
	}
}

// TestAClaimIsHeldByPodsThatHaveEnded: Kubernetes keeps a claim for every Pod that has a node, a Job's that is long done too.
func TestAClaimIsHeldByPodsThatHaveEnded(t *testing.T) {
	gone := before(time.Minute)
	claim := claimFor(nil)
	claim.DeletionTimestamp, claim.Finalizers = &gone, []string{"kubernetes.io/pvc-protection"}
	user := func(name, node string, phase corev1.PodPhase) *corev1.Pod {
		return pod(func(p *corev1.Pod) {
			p.Name, p.Spec.NodeName, p.Status.Phase = name, node, phase
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
		})
	}
	for want, pods := range map[string][]runtime.Object{
		"pod done; it is removed when they are deleted, also those that have ended": {user("done", "n1", corev1.PodSucceeded)},
		"pod runs; it is removed when they are deleted": {
			user("runs", "n1", corev1.PodRunning)},
	} {
		client := fake.NewClientset(append(pods, claim.DeepCopy(), user("unscheduled", "", corev1.PodPending))...)
		explanation, err := explain.Explain(t.Context(), source(client, nil), explain.KindClaim, "default", "data")
		require.NoError(t, err)
		require.Equal(t, "InUse", explanation.Reason)
		require.Contains(t, explanation.Verdict, want)
		require.NotContains(t, explanation.Verdict, "unscheduled")
	}
}

// TestAClaimThatIsToGrow: a separate program expands volumes, and without it there is no record.
func TestAClaimThatIsToGrow(t *testing.T) {
	claim := claimFor(nil)
	claim.Spec.VolumeName, claim.Status.Phase = "v", corev1.ClaimBound
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")}
	claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("16Mi")}
	for size, want := range map[string]string{
		"16Mi": "it has 16Mi and asks for 64Mi; it waits for resizer of driver d.example",
		"64Mi": "its volume has grown, and the file system follows when a pod uses it",
	} {
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "d.example", VolumeHandle: "h"}}}}
		src := source(fake.NewClientset(claim.DeepCopy(), pv), nil)
		explanation, err := explain.Explain(t.Context(), src, explain.KindClaim, "default", "data")
		require.NoError(t, err)
		require.Equal(t, "ExpansionPending", explanation.Reason)
		require.Contains(t, explanation.Verdict, want)
		stuck, _, err := explain.Stuck(t.Context(), src, "", "")
		require.NoError(t, err)
		require.Len(t, stuck, 1)
	}
	growsInStages(t, claim)
	claim.Status.Capacity = claim.Spec.Resources.Requests
	explanation, err := explain.Explain(t.Context(), source(fake.NewClientset(claim), nil), explain.KindClaim, "default", "data")
	require.NoError(t, err)
	require.Equal(t, "Bound", explanation.Reason)
}

// growsInStages checks each stage that the claim's status can show.
func growsInStages(t *testing.T, claim *corev1.PersistentVolumeClaim) {
	t.Helper()
	type stage = corev1.ClaimResourceStatus
	for _, test := range []struct {
		stage     stage
		size      string
		condition corev1.PersistentVolumeClaimConditionType
		reason    string
		want      string
	}{
		{corev1.PersistentVolumeClaimControllerResizeInProgress, "16Mi", "", "ExpansionPending",
			"driver d.example is making its volume larger"},
		{corev1.PersistentVolumeClaimControllerResizeInProgress, "16Mi", corev1.PersistentVolumeClaimControllerResizeError,
			"ExpansionFailed", "making its volume larger has failed: says who"},
		{corev1.PersistentVolumeClaimControllerResizeInfeasible, "16Mi", corev1.PersistentVolumeClaimControllerResizeError,
			"ExpansionInfeasible", "driver d.example cannot give it that: says who"},
		{corev1.PersistentVolumeClaimControllerResizeInProgress, "64Mi", "", "ExpansionPending",
			"resizer of driver d.example is about to report whether the node must expand it, too"},
		{corev1.PersistentVolumeClaimNodeResizePending, "64Mi", corev1.PersistentVolumeClaimFileSystemResizePending,
			"ExpansionPending", "the file system follows when a pod uses it"},
		{corev1.PersistentVolumeClaimNodeResizeInProgress, "64Mi", corev1.PersistentVolumeClaimNodeResizeError,
			"ExpansionFailed", "making the file system follow has failed: says who"},
		{corev1.PersistentVolumeClaimNodeResizeInfeasible, "64Mi", corev1.PersistentVolumeClaimNodeResizeError,
			"ExpansionInfeasible", "its node cannot make the file system follow: says who"},
	} {
		now := claim.DeepCopy()
		now.Status.AllocatedResourceStatuses = map[corev1.ResourceName]stage{corev1.ResourceStorage: test.stage}
		now.Status.Conditions = []corev1.PersistentVolumeClaimCondition{
			{Type: test.condition, Status: corev1.ConditionTrue, Message: "says who"}}
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(test.size)},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "d.example", VolumeHandle: "h"}}}}
		explanation, err := explain.Explain(t.Context(), source(fake.NewClientset(now, pv), nil), explain.KindClaim, "default", "data")
		require.NoError(t, err)
		require.Equal(t, test.reason, explanation.Reason, "%s %s", test.stage, test.size)
		require.Contains(t, explanation.Verdict, test.want)
	}
}
