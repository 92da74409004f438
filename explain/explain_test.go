package explain_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/timeline"
)

var now = time.Date(2026, 1, 2, 3, 4, 15, 0, time.UTC)

// source draws answers from a made-up cluster at a fixed time.
func source(client kubernetes.Interface, recs explain.Records) explain.Source {
	return explain.Source{Client: client, Records: recs, Clock: clocktesting.NewFakePassiveClock(now)}
}

// scene is one situation: what the API holds and what was recorded.
type scene struct {
	pod     *corev1.Pod
	objects []runtime.Object
	record  func(rec *timeline.Recorder, pod timeline.Ref)
}

func pod(change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "pod", CreationTimestamp: metav1.NewTime(now.Add(-10 * time.Second))},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "main", Image: "x"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodPending},
	}
	if change != nil {
		change(p)
	}
	return p
}

func node(ready corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: ready, Message: "network is down", LastTransitionTime: metav1.NewTime(now.Add(-5 * time.Second))}}}}
}

func pressed(node *corev1.Node) *corev1.Node {
	node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeDiskPressure,
		Status: corev1.ConditionTrue, Message: "less than 2.0 GiB are free"})
	return node
}

func claimFor(class *string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: "claim", CreationTimestamp: metav1.NewTime(now.Add(-20 * time.Second))},
		Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: class},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
}

func evicted(message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "Evicted", message
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}
	}
}

// endedByNode makes a Pod one that its node has ended.
func endedByNode(reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		evicted(message)(p)
		p.Status.Reason = reason
	}
}

// statusRefused records that the API server has refused a status.
func statusRefused(rec *timeline.Recorder, ref timeline.Ref) {
	rec.Begin(ref, "kubelet", timeline.StageStatus, "Running").End(
		timeline.WithReason(errors.New(`Pod "web" is invalid`), timeline.ReasonStatusRefused, "change it"))
}

func withClaim(p *corev1.Pod) {
	p.Spec.NodeName = ""
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
}

func status(state corev1.ContainerState) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: state, RestartCount: 3}}
	}
}

var scenes = map[string]struct {
	scene
	state  explain.State
	reason string
	says   string
}{
	"class missing": {scene{pod: pod(withClaim), objects: []runtime.Object{claimFor(ptr.To("fast"))}},
		explain.Waiting, "ClassMissing", `waiting 20.0 s: claim data (volume v) asks for storage class "fast", which does not exist`},
	"claim missing": {scene{pod: pod(withClaim)}, explain.Waiting, "ClaimMissing", "claim data (volume v) does not exist"},
	"no class at all": {scene{pod: pod(withClaim), objects: []runtime.Object{claimFor(nil)}},
		explain.Waiting, "ClaimWithoutClass", "names no storage class and there is no default class"},
	"provisioner silent": {scene{pod: pod(withClaim), objects: []runtime.Object{claimFor(ptr.To("fast")),
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "acme.io/disk"}}},
		explain.Waiting, "ProvisionerSilent", "waits for provisioner acme.io/disk of class fast, which has not answered"},
	"provisioner failing": {scene{pod: pod(withClaim), objects: []runtime.Object{claimFor(ptr.To("fast")),
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "acme.io/disk"}},
		record: func(rec *timeline.Recorder, _ timeline.Ref) {
			claim := timeline.Ref{Kind: "PersistentVolumeClaim", Namespace: "default", Name: "data", UID: "claim"}
			rec.Begin(claim, "provision", timeline.StageProvisioning, "").End(errors.New("quota used up"))
		}},
		explain.Waiting, "ProvisioningFailed", "cannot be provisioned (attempt 1): quota used up"},
	"no node fits": {scene{pod: pod(func(p *corev1.Pod) {
		p.Spec.NodeName = ""
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable",
			Message: "0/1 nodes are available: 1 Insufficient cpu"}}
	})}, explain.Waiting, "InsufficientResources", "no node fits: 0/1 nodes are available: 1 Insufficient cpu"},
	"node short of disk": {scene{pod: pod(func(p *corev1.Pod) {
		p.Spec.NodeName = ""
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable",
			Message: "0/1 nodes are available: 1 node(s) had untolerated taint(s)"}}
	}), objects: []runtime.Object{pressed(node(corev1.ConditionTrue))}}, explain.Waiting, "NodesUnderPressure",
		"its only node n1 is under pressure: less than 2.0 GiB are free (0/1 nodes are available: 1 node(s) had untolerated taint(s))"},
	"evicted by its node": {scene{pod: pod(evicted("The node was low on resource: memory. Threshold quantity: 100Mi, available: 95Mi. "))},
		explain.Failed, "Evicted", "was evicted by node n1, which ran short of memory: The node was low on resource: memory. "},
	"evicted for its own limit": {scene{pod: pod(evicted(`Usage of EmptyDir volume "v" exceeds the limit "1Mi". `))},
		explain.Failed, "Evicted", `was evicted: it exceeded a limit of its own: Usage of EmptyDir volume "v" exceeds the limit "1Mi".`},
	"rejected under pressure": {scene{pod: pod(evicted("Pod was rejected: The node had condition: [DiskPressure]. "))},
		explain.Failed, "Evicted", "was rejected by node n1, which is short of a resource: "},
	"preempted with exit code 0": {scene{pod: pod(func(p *corev1.Pod) {
		endedByNode("Preempting", "Preempted in order to admit critical pod")(p)
		p.Status.Phase = corev1.PodSucceeded
	})},
		explain.Failed, "Preempting", "was ended by node n1, whose resources a critical Pod needed: Preempted in order to admit critical pod"},
	"preempted": {scene{pod: pod(endedByNode("Preempting", "Preempted in order to admit critical pod"))},
		explain.Failed, "Preempting", "was ended by node n1, whose resources a critical Pod needed: Preempted in order to admit critical pod"},
	"ended by the shutdown of its machine": {scene{pod: pod(endedByNode("Terminated", "Pod was terminated in response to imminent node shutdown."))},
		explain.Failed, "Terminated", "was ended by node n1, because its machine shut down: Pod was terminated in response to imminent node shutdown."},
	"rejected during the shutdown of its machine": {scene{pod: pod(endedByNode("NodeShutdown", "Pod was rejected as the node is shutting down."))},
		explain.Failed, "NodeShutdown", "was rejected by node n1, whose machine was shutting down: Pod was rejected as the node is shutting down."},
	"rejected for the alignment of its resources": {scene{pod: pod(endedByNode("TopologyAffinityError", "Resources cannot be allocated with Topology locality: cpu is free on no nodes"))},
		explain.Failed, "TopologyAffinityError", "was rejected by node n1, whose topology manager does not find all resources on one set of NUMA nodes: Resources cannot"},
	"rejected for CPUs that do not fill cores": {scene{pod: pod(endedByNode("SMTAlignmentError", "SMT Alignment Error: requested 1 cpus not multiple cpus per core = 2"))},
		explain.Failed, "SMTAlignmentError", "was rejected by node n1, whose CPU manager gives away whole cores only: SMT Alignment Error: requested 1 cpus"},
	"rejected for CPUs that are not free": {scene{pod: pod(endedByNode("UnexpectedAdmissionError",
		"Allocate failed due to [cpumanager] not enough CPUs are free: 2 requested, free are 0, which is unexpected"))},
		explain.Failed, "UnexpectedAdmissionError", "was rejected by node n1, which cannot give it CPUs, memory or devices of its own: [cpumanager] not enough CPUs are free: 2 requested, free are 0"},
	"node gone": {scene{pod: pod(func(p *corev1.Pod) { p.Spec.NodeName = "n2" })},
		explain.Waiting, "NodeMissing", "its node n2 does not exist any more"},
	"node not ready": {scene{pod: pod(nil), objects: []runtime.Object{node(corev1.ConditionFalse)}},
		explain.Waiting, "NodeNotReady", "waiting 5.0 s: its node n1 is not ready: network is down"},
	"status refused": {scene{pod: pod(nil), record: statusRefused},
		explain.Waiting, "StatusRefused", "the API server refuses the status that the kubelet of node n1 writes (attempt 1): Pod \"web\" is invalid"},
	"status refused during a deletion": {scene{pod: pod(func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = ptr.To(metav1.NewTime(now)), ptr.To(int64(2))
	}), objects: []runtime.Object{node(corev1.ConditionTrue)}, record: statusRefused},
		explain.Terminating, "StatusRefused", "deleting for 2.0 s: the API server refuses the status that the kubelet of node n1 writes"},
	"status accepted after a refusal": {scene{pod: pod(nil), objects: []runtime.Object{node(corev1.ConditionTrue)},
		record: func(rec *timeline.Recorder, ref timeline.Ref) {
			statusRefused(rec, ref)
			rec.Begin(ref, "kubelet", timeline.StageStatus, "Running").End(nil)
		}}, explain.Waiting, "Starting", "the kubelet of node n1 is starting it"},
	"volume failing": {scene{pod: pod(nil), record: func(rec *timeline.Recorder, ref timeline.Ref) {
		rec.Begin(ref, "kubelet", timeline.StageVolume, "settings").End(errors.New(`configmap "settings" not found`))
		rec.Begin(ref, "kubelet", timeline.StageVolume, "settings")
	}}, explain.Waiting, "FailedMount", `volume settings cannot be set up (attempt 2): configmap "settings" not found`},
	"sandbox failing": {scene{pod: pod(nil), record: func(rec *timeline.Recorder, ref timeline.Ref) {
		rec.Begin(ref, "kubelet", timeline.StageVolume, "settings").End(errors.New("late"))
		rec.Begin(ref, "kubelet", timeline.StageVolume, "settings").End(nil)
		rec.Begin(ref, "kubelet", timeline.StageSandbox, "").End(errors.New("no IP left"))
	}}, explain.Waiting, "FailedCreatePodSandBox", "its sandbox cannot be made (attempt 1): no IP left"},
	"image": {scene{pod: pod(status(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such host"}}))},
		explain.Waiting, "ErrImagePull", "image x of container main cannot be pulled: no such host"},
	"setting missing": {scene{pod: pod(func(p *corev1.Pod) {
		p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "gone"}, {Name: "none"}, {Name: "pull"}}
		p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}}
		status(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: `configmap "settings" not found`}})(p)
	})}, explain.Waiting, "ConfigMapMissing", `container main: CreateContainerConfigError: configmap "settings" not found`},
	"crash loop": {scene{pod: pod(func(p *corev1.Pod) {
		status(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 40s"}})(p)
		p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 7,
			FinishedAt: metav1.NewTime(now.Add(-4 * time.Second))}
	})}, explain.Waiting, "CrashLoopBackOff", "container main crashes: it ended 3 times, last with exit code 7 4.0 s ago; back-off 40s"},
	"probe failing": {scene{pod: pod(status(corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(now.Add(-2 * time.Second))}})),
		objects: []runtime.Object{&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "e"}, Reason: "Unhealthy",
			Message: "Readiness probe failed: 500", InvolvedObject: corev1.ObjectReference{UID: "pod"}}}},
		explain.Waiting, "ProbeFailing", "container main runs, but: Readiness probe failed: 500"},
	"refused": {scene{pod: pod(func(p *corev1.Pod) {
		p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "UnsupportedField", "spec.volumes[0].nfs"
	})}, explain.Failed, "UnsupportedField", "failed: spec.volumes[0].nfs"},
	"done": {scene{pod: pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })}, explain.Succeeded, "Completed", "exit code 0"},
	"held by a finalizer": {scene{pod: pod(func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = ptr.To(metav1.NewTime(now)), ptr.To[int64](30)
		p.Finalizers = []string{"acme.io/guard"}
	})}, explain.Terminating, "Finalizer", "deleting for 30.0 s: held by finalizer acme.io/guard"},
	"ready": {scene{pod: pod(func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		p.Status.Phase = corev1.PodRunning
	})}, explain.Ready, "Ready", "running and ready"},
}

func TestVerdicts(t *testing.T) {
	for name, test := range scenes {
		t.Run(name, func(t *testing.T) {
			explanation := ask(t, test.scene)
			require.Equal(t, test.reason, explanation.Reason, explanation.Verdict)
			require.Equal(t, test.state, explanation.State)
			require.Contains(t, explanation.Verdict, test.says)
			require.NotEmpty(t, explanation.Stages)
		})
	}
}

func ask(t *testing.T, s scene) *explain.Explanation {
	t.Helper()
	objects := append([]runtime.Object{s.pod}, s.objects...)
	ready := true
	for _, object := range s.objects {
		if _, ok := object.(*corev1.Node); ok {
			ready = false
		}
	}
	if ready {
		objects = append(objects, node(corev1.ConditionTrue))
	}
	rec := timeline.New(clocktesting.NewFakePassiveClock(now.Add(-3*time.Second)), 0)
	if s.record != nil {
		s.record(rec, timeline.PodRef(s.pod))
	}
	explanation, err := explain.Pod(t.Context(), source(fake.NewClientset(objects...), records{rec}), "default", "web")
	require.NoError(t, err)
	return explanation
}

type records struct{ rec *timeline.Recorder }

func (r records) Record(_ context.Context, uid types.UID) (timeline.Record, bool, error) {
	record, ok := r.rec.Record(uid)
	return record, ok, nil
}

func TestNoSuchPod(t *testing.T) {
	_, err := explain.Pod(t.Context(), source(fake.NewClientset(), nil), "default", "web")
	require.ErrorContains(t, err, "default/web")
}

func TestWithoutRecordsTheAnswerSaysSo(t *testing.T) {
	explanation, err := explain.Pod(t.Context(), source(fake.NewClientset(pod(nil), node(corev1.ConditionTrue)), nil), "default", "web")
	require.NoError(t, err)
	require.Len(t, explanation.Unseen, 1)
	require.Contains(t, explanation.Unseen[0], "times come from the API")
	require.Equal(t, timeline.StageAccepted, explanation.Stages[0].Name)
}

// A `berth node` sees a Pod once it is bound, a `berth controllers` a claim once it is to be provisioned: what was before
// comes from the API.
func TestARecordOfAPartBeginsWithTheAcceptance(t *testing.T) {
	clock := clocktesting.NewFakeClock(now)
	rec := timeline.New(clock, 0)
	bound := pod(func(p *corev1.Pod) {
		p.CreationTimestamp = metav1.NewTime(now.Add(-5 * time.Second))
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(now.Add(-time.Second))}}
	})
	rec.Mark(timeline.PodRef(bound), "kubelet", timeline.StageSeen, "", nil)
	stages := func() []string {
		explanation, err := explain.Pod(t.Context(), source(fake.NewClientset(bound, node(corev1.ConditionTrue)), records{rec}), "default", "web")
		require.NoError(t, err)
		var list []string
		for _, stage := range explanation.Stages {
			list = append(list, stage.Name)
		}
		require.Equal(t, len(list) > 1, len(explanation.Unseen) == 1, "what is not to the millisecond is said: %v", explanation.Unseen)
		return list
	}
	require.Equal(t, []string{timeline.StageAccepted, timeline.StageScheduled, timeline.StageSeen}, stages())

	bound.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-time.Hour))
	require.Equal(t, []string{timeline.StageSeen}, stages(), "seen again by a restarted kubelet")
}

func TestARecordOfAProvisionerBeginsWithTheAcceptance(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: "c",
		CreationTimestamp: metav1.NewTime(now.Add(-time.Second))}}
	for stage, want := range map[string][]string{
		timeline.StageProvisioning: {timeline.StageAccepted, timeline.StageProvisioning},
		timeline.StageVolume:       {timeline.StageVolume}, // long after
	} {
		rec := timeline.New(clocktesting.NewFakeClock(now), 0)
		rec.Mark(timeline.RefOf(explain.KindClaim, claim), "provision", stage, "", nil)
		explanation, err := explain.Explain(t.Context(), source(fake.NewClientset(claim), records{rec}), explain.KindClaim, "default", "data")
		require.NoError(t, err)
		var list []string
		for _, stage := range explanation.Stages {
			list = append(list, stage.Name)
		}
		require.Equal(t, want, list)
		require.Len(t, explanation.Unseen, len(want)-1)
	}
}

func TestWaterfall(t *testing.T) {
	clock := clocktesting.NewFakeClock(now.Add(-10 * time.Second))
	rec := timeline.New(clock, 0)
	ref := timeline.PodRef(pod(nil))
	rec.Mark(ref, "api", timeline.StageAccepted, "", nil)
	clock.Step(100 * time.Millisecond)
	sandbox := rec.Begin(ref, "kubelet", timeline.StageSandbox, "")
	clock.Step(300 * time.Millisecond)
	sandbox.End(nil)
	rec.Begin(ref, "kubelet", timeline.StageImage, "main").End(errors.New("not here"))

	explanation, err := explain.Pod(t.Context(), source(fake.NewClientset(pod(nil), node(corev1.ConditionTrue)), records{rec}), "default", "web")
	require.NoError(t, err)
	require.InDelta(t, 100, explanation.Stages[1].OffsetMs, 0.01)
	require.InDelta(t, 300, explanation.Stages[1].DurationMs, 0.01)

	var plain, wide bytes.Buffer
	require.NoError(t, explain.Print(&plain, explanation, 0))
	require.NotContains(t, plain.String(), "█", "no bars in a pipe")
	require.Contains(t, plain.String(), "error: not here")
	require.NoError(t, explain.Print(&wide, explanation, 120))
	require.Contains(t, wide.String(), "█")
	for line := range strings.Lines(wide.String()) {
		if strings.Contains(line, "█") {
			require.LessOrEqual(t, len([]rune(line)), 121)
		}
	}
}
