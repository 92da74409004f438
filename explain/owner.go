package explain

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/timeline"
)

func explainReplicaSet(ctx context.Context, src Source, namespace, name string) (*Explanation, error) {
	began := src.now()
	rs, err := src.Client.AppsV1().ReplicaSets(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read replicaset %s/%s: %w", namespace, name, err)
	}
	now := src.now()
	q := src.newBuilder(ctx, timeline.RefOf(KindReplicaSet, rs), now)
	found := replicaSetState(rs, q.record, now)
	if found.state == Waiting && found.reason == reasonPodsNotReady {
		q.adoptWorstPod(ctx, found, rs)
	}
	q.adoptWebhook(ctx, found)
	explanation := q.build(found)
	explanation.noteSlowAPI(began, now)
	return explanation, nil
}

func replicaSetState(rs *appsv1.ReplicaSet, record timeline.Record, now time.Time) *finding {
	object := KindReplicaSet + "/" + rs.Name
	want := int32(1)
	if rs.Spec.Replicas != nil {
		want = *rs.Spec.Replicas
	}
	since := rs.CreationTimestamp.Time
	count := fmt.Sprintf("%d of %d pods are ready", rs.Status.ReadyReplicas, want)
	found := &finding{state: Waiting, since: since, next: kubectl(rs.Namespace, "describe rs", rs.Name)}
	if rs.DeletionTimestamp != nil {
		return deletedOwner(rs, object, now)
	}
	for _, condition := range rs.Status.Conditions {
		if condition.Type == appsv1.ReplicaSetReplicaFailure && condition.Status == corev1.ConditionTrue {
			found.reason, found.since = condition.Reason, condition.LastTransitionTime.Time
			found.verdict = fmt.Sprintf("waiting %s: %s, and creating more failed: %s", ago(now, found.since), count, condition.Message)
			found.evidence = []Evidence{{object, "status.conditions[ReplicaFailure]", condition.Message}}
			return found
		}
	}
	if failed, _ := lastAttempt(record, timeline.StageReconcile); failed != nil && rs.Status.Replicas != want {
		found.reason, found.since = "ReconcileFailed", failed.Start
		found.verdict = fmt.Sprintf("waiting %s: %s: %s", ago(now, since), count, failed.Error)
		found.evidence = []Evidence{{object, "stage " + timeline.StageReconcile, failed.Error}}
		return found
	}
	switch {
	case rs.Status.ObservedGeneration < rs.Generation:
		found.reason, found.heldBy = "NotObserved", "replicaset controller"
		found.verdict = "its controller has not observed its latest generation yet"
	case rs.Status.Replicas < want:
		found.reason, found.heldBy = "TooFewPods", "replicaset controller"
		found.verdict = fmt.Sprintf("waiting %s: %d of %d pods are created", ago(now, since), rs.Status.Replicas, want)
	case rs.Status.Replicas > want:
		found.reason, found.heldBy = "TooManyPods", "replicaset controller"
		found.verdict = fmt.Sprintf("%d pods exist and %d are desired: the rest is being deleted", rs.Status.Replicas, want)
	case rs.Status.ReadyReplicas < want:
		found.reason = reasonPodsNotReady
		found.verdict = fmt.Sprintf("waiting %s: %s", ago(now, since), count)
	default:
		found.state, found.reason, found.next = Ready, "Ready", ""
		found.verdict = count
	}
	return found
}

func deletedOwner(object metav1.Object, name string, now time.Time) *finding {
	since := object.GetDeletionTimestamp().Time
	finalizers := fmt.Sprint(object.GetFinalizers())
	return &finding{state: Terminating, reason: "Deleting", since: since, heldBy: finalizers,
		verdict:  fmt.Sprintf("deleting for %s: held by finalizers %s", ago(now, since), finalizers),
		evidence: []Evidence{{name, "metadata.finalizers", finalizers}}}
}

// adoptWorstPod copies the cause of the owner's worst Pod to the finding.
func (q *builder) adoptWorstPod(ctx context.Context, found *finding, owner metav1.Object) {
	pods, err := q.src.Client.CoreV1().Pods(owner.GetNamespace()).List(ctx, metav1.ListOptions{})
	if err != nil {
		q.addUnseen("pods", err)
		return
	}
	worst := q.worstOf(ctx, slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool { return !metav1.IsControlledBy(&pod, owner) }))
	if worst == nil {
		return
	}
	found.reason, found.heldBy = worst.Reason, "pod "+worst.Object.Name
	found.verdict += fmt.Sprintf("; pod %s: %s", worst.Object.Name, worst.Verdict)
	found.evidence = append(found.evidence, worst.Evidence...)
	found.remedy = worst.Remedy
	found.next = "berth explain pod/" + worst.Object.Name + " -n " + worst.Object.Namespace
}

// worstOf explains the Pods that are not ready and returns the worst explanation; nil if all are ready.
func (q *builder) worstOf(ctx context.Context, pods []corev1.Pod) *Explanation {
	var worst *Explanation
	for i := range pods {
		if podutil.IsReady(&pods[i].Status) {
			continue
		}
		explanation, err := Pod(ctx, q.src, pods[i].Namespace, pods[i].Name)
		if err != nil {
			continue // it has gone meanwhile
		}
		if worst == nil || compare(explanation, worst) < 0 {
			worst = explanation
		}
	}
	return worst
}

func explainDeployment(ctx context.Context, src Source, namespace, name string) (*Explanation, error) {
	began := src.now()
	deployment, err := src.Client.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read deployment %s/%s: %w", namespace, name, err)
	}
	now := src.now()
	q := &builder{src: src, now: now, ref: timeline.RefOf(KindDeployment, deployment)}
	found := deploymentState(deployment, now)
	if found.state == Waiting && found.reason != "Paused" {
		q.adoptNewestReplicaSet(ctx, found, deployment)
	}
	q.adoptWebhook(ctx, found)
	explanation := q.build(found)
	explanation.noteSlowAPI(began, now)
	return explanation, nil
}

func deploymentState(d *appsv1.Deployment, now time.Time) *finding {
	object := KindDeployment + "/" + d.Name
	want := int32(1)
	if d.Spec.Replicas != nil {
		want = *d.Spec.Replicas
	}
	status := d.Status
	since := d.CreationTimestamp.Time
	found := &finding{state: Waiting, reason: "Progressing", since: since, next: kubectl(d.Namespace, "rollout status deployment", d.Name)}
	switch {
	case d.DeletionTimestamp != nil:
		return deletedOwner(d, object, now)
	case status.ObservedGeneration < d.Generation:
		found.reason, found.heldBy = "NotObserved", "deployment controller"
		found.verdict = "its controller has not observed its latest generation yet"
	case status.UpdatedReplicas >= want && status.AvailableReplicas >= want && status.Replicas == want:
		found.state, found.reason, found.next = Ready, "Available", ""
		found.verdict = fmt.Sprintf("%d of %d pods are available and up to date", status.AvailableReplicas, want)
		return found
	case d.Spec.Paused:
		found.reason, found.verdict = "Paused", "its rollout is paused"
		found.next = kubectl(d.Namespace, "rollout resume deployment", d.Name)
	default:
		found.verdict = fmt.Sprintf("waiting %s: %d of %d pods are up to date, %d available", ago(now, since), status.UpdatedReplicas, want,
			status.AvailableReplicas)
	}
	for _, condition := range status.Conditions {
		bad := condition.Type == appsv1.DeploymentProgressing && condition.Status == corev1.ConditionFalse ||
			condition.Type == appsv1.DeploymentReplicaFailure && condition.Status == corev1.ConditionTrue
		if bad {
			found.reason = condition.Reason
			found.verdict += ": " + condition.Message
			found.evidence = append(found.evidence, Evidence{object, fmt.Sprintf("status.conditions[%s]", condition.Type), condition.Message})
		}
	}
	return found
}

// adoptNewestReplicaSet copies the cause of the deployment's newest ReplicaSet to the finding.
func (q *builder) adoptNewestReplicaSet(ctx context.Context, found *finding, owner metav1.Object) {
	list, err := q.src.Client.AppsV1().ReplicaSets(owner.GetNamespace()).List(ctx, metav1.ListOptions{})
	if err != nil {
		q.addUnseen("replicasets", err)
		return
	}
	sets := slices.DeleteFunc(list.Items, func(rs appsv1.ReplicaSet) bool {
		return !metav1.IsControlledBy(&rs, owner) || rs.Spec.Replicas != nil && *rs.Spec.Replicas == 0
	})
	if len(sets) == 0 {
		return
	}
	newest := slices.MaxFunc(sets, func(a, b appsv1.ReplicaSet) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	explanation, err := explainReplicaSet(ctx, q.src, newest.Namespace, newest.Name)
	if err != nil || explanation.State == Ready {
		return
	}
	found.reason, found.heldBy = explanation.Reason, explanation.HeldBy
	found.verdict += fmt.Sprintf("; replicaset %s: %s", newest.Name, explanation.Verdict)
	found.evidence = append(found.evidence, explanation.Evidence...)
	found.remedy, found.next = explanation.Remedy, explanation.Next
}
