package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	storagehelpers "k8s.io/component-helpers/storage/volume"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/timeline"
)

// claimFacts is the input of the verdict on a claim.
type claimFacts struct {
	now    time.Time
	claim  *corev1.PersistentVolumeClaim
	class  *storagev1.StorageClass // nil if there is none of that name
	volume *corev1.PersistentVolume
	users  []string // Pods that use it, by name
	// holders are the Pods for which Kubernetes keeps the claim while it is being deleted: all that have a node, also those
	// that have ended.
	holders []string
	// ended is set if one of the holders has ended.
	ended  bool
	events []corev1.Event
	record timeline.Record
}

// cause is why a claim is not bound: text completes the sentence "claim NAME …".
type cause struct {
	reason, text, next, heldBy, remedy string
	since                              time.Time
	evidence                           []Evidence
}

func explainClaim(ctx context.Context, src Source, namespace, name string) (*Explanation, error) {
	began := src.now()
	claim, err := src.Client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read persistentvolumeclaim %s/%s: %w", namespace, name, err)
	}
	now := src.now()
	q := src.newBuilder(ctx, timeline.RefOf(KindClaim, claim), now)
	f := readClaimFacts(ctx, src.Client, claim, q.addUnseen)
	f.now, f.record = now, q.record
	f.readUsers(ctx, src.Client, q.addUnseen)
	if recordStartsAtProvisioning(q.record) {
		q.unseen = append(q.unseen, acceptedUnseen)
	}
	explanation := q.build(f.explain())
	if len(explanation.Stages) == 0 || recordStartsAtProvisioning(q.record) {
		mark := apiMark(KindClaim, name, timeline.StageAccepted, claim.CreationTimestamp.Time)
		explanation.Stages = alignStages(append(explanation.Stages, mark), now)
	}
	explanation.noteSlowAPI(began, now)
	return explanation, nil
}

func apiMark(kind, name, stage string, t time.Time) Stage {
	return Stage{Object: kind + "/" + name, Stage: timeline.Stage{Name: stage, Owner: "api", Attempt: 1, Start: t, End: t}}
}

// acceptedUnseen is reported for a record of `berth controllers` or `berth node`, which records only its own stages.
const acceptedUnseen = "stage Accepted: not recorded by the berth that was queried; its time comes from the API, to the second"

// recordStartsAtProvisioning reports whether the record has the claim's provisioning, but no earlier stage.
func recordStartsAtProvisioning(record timeline.Record) bool {
	return !hasStage(record, timeline.StageAccepted) && hasStage(record, stageQueued, timeline.StageProvisioning, timeline.StageSaving)
}

// readClaimFacts reads a claim's class, volume and events.
func readClaimFacts(ctx context.Context, client kubernetes.Interface, claim *corev1.PersistentVolumeClaim,
	miss func(string, error),
) *claimFacts {
	f := &claimFacts{claim: claim}
	if name := className(claim); name != "" {
		class, err := client.StorageV1().StorageClasses().Get(ctx, name, metav1.GetOptions{})
		switch {
		case err == nil:
			f.class = class
		case !apierrors.IsNotFound(err):
			miss("storageclass "+name, err)
			f.class = &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}} // it may exist
		}
	}
	if name := claim.Spec.VolumeName; name != "" {
		volume, err := client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		switch {
		case err == nil:
			f.volume = volume
		case !apierrors.IsNotFound(err):
			miss("persistentvolume "+name, err)
			f.volume = &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
		}
	}
	f.events = readEvents(ctx, client, claim.Namespace, claim.UID, miss)
	return f
}

func className(claim *corev1.PersistentVolumeClaim) string {
	if claim.Spec.StorageClassName == nil {
		return claim.Annotations[corev1.BetaStorageClassAnnotation]
	}
	return *claim.Spec.StorageClassName
}

// readEvents reads the events about one object, the oldest first.
func readEvents(ctx context.Context, client kubernetes.Interface, namespace string, uid types.UID, miss func(string, error),
) []corev1.Event {
	list, err := client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(uid)).String(),
	})
	if err != nil {
		miss("events", err)
		return nil
	}
	slices.SortStableFunc(list.Items, func(a, b corev1.Event) int {
		return cmp.Compare(eventTime(a).UnixNano(), eventTime(b).UnixNano())
	})
	return list.Items
}

func lastEvent(events []corev1.Event, reasons ...string) *corev1.Event {
	for i := len(events) - 1; i >= 0; i-- {
		if slices.Contains(reasons, events[i].Reason) {
			return &events[i]
		}
	}
	return nil
}

// readUsers finds the Pods that keep a claim in use.
func (f *claimFacts) readUsers(ctx context.Context, client kubernetes.Interface, miss func(string, error)) {
	pods, err := client.CoreV1().Pods(f.claim.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		miss("pods", err)
		return
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if !slices.Contains(claimNames(pod), f.claim.Name) {
			continue
		}
		ended := podutil.IsTerminal(&pod.Status)
		if pod.Spec.NodeName != "" {
			f.holders, f.ended = append(f.holders, pod.Name), f.ended || ended
		}
		if !ended {
			f.users = append(f.users, pod.Name)
		}
	}
}

func (f *claimFacts) explain() *finding {
	claim := f.claim
	object := KindClaim + "/" + claim.Name
	if claim.DeletionTimestamp != nil {
		return f.terminating(object)
	}
	if c := f.unbound(); c != nil {
		return &finding{state: Waiting, reason: c.reason, since: c.since, heldBy: c.heldBy, next: c.next, evidence: c.evidence,
			remedy:  c.remedy,
			verdict: fmt.Sprintf("waiting %s: it %s", ago(f.now, c.since), c.text)}
	}
	if found := f.expanding(object); found != nil {
		return found
	}
	if found := f.modifying(object); found != nil {
		return found
	}
	found := &finding{state: Ready, reason: "Bound", verdict: "bound to volume " + claim.Spec.VolumeName}
	if size, ok := claim.Status.Capacity[corev1.ResourceStorage]; ok {
		found.verdict += " of " + size.String()
	}
	if len(f.users) > 0 {
		found.verdict += ", used by " + names("pod", f.users)
	}
	for _, condition := range claim.Status.Conditions {
		if condition.Status == corev1.ConditionTrue && condition.Message != "" {
			found.evidence = append(found.evidence, Evidence{object, fmt.Sprintf("status.conditions[%s]", condition.Type), condition.Message})
		}
	}
	f.health(object, found)
	return found
}

// health says what the driver has reported of the volume's health last.
func (f *claimFacts) health(object string, found *finding) {
	event := lastEvent(f.events, "VolumeConditionAbnormal", "VolumeConditionNormal")
	if event == nil || event.Reason == "VolumeConditionNormal" {
		return
	}
	found.reason = "VolumeAbnormal"
	found.verdict += ", but its driver reports: " + event.Message
	found.remedy = "check the storage that the driver's message names; restore from a snapshot or a backup if data are lost"
	found.evidence = append(found.evidence, Evidence{object, "event", event.Reason + ": " + event.Message})
}

// terminating says why a claim that is being deleted still exists.
func (f *claimFacts) terminating(object string) *finding {
	claim := f.claim
	since := claim.DeletionTimestamp.Time
	found := &finding{state: Terminating, reason: "Finalizer", since: since, heldBy: strings.Join(claim.Finalizers, ", "),
		verdict:  fmt.Sprintf("deleting for %s: held by finalizer %s", ago(f.now, since), strings.Join(claim.Finalizers, ", ")),
		evidence: []Evidence{{object, "metadata.finalizers", strings.Join(claim.Finalizers, ", ")}},
		next:     kubectl(claim.Namespace, "get pvc", claim.Name+" -o jsonpath={.metadata.finalizers}")}
	if slices.Contains(claim.Finalizers, "kubernetes.io/pvc-protection") && len(f.holders) > 0 {
		found.reason, found.heldBy = "InUse", names("pod", f.holders)
		found.verdict = fmt.Sprintf("deleting for %s: still used by %s; it is removed when they are deleted", ago(f.now, since), names("pod", f.holders))
		if f.ended {
			found.verdict += ", also those that have ended"
		}
		found.next = kubectl(claim.Namespace, "get pods", strings.Join(f.holders, " "))
	}
	return found
}

func names(kind string, list []string) string {
	const shown = 3
	if len(list) > 1 {
		kind += "s"
	}
	if len(list) > shown {
		return fmt.Sprintf("%s %s and %d more", kind, strings.Join(list[:shown], ", "), len(list)-shown)
	}
	return kind + " " + strings.Join(list, ", ")
}

// unbound says why the claim is not bound; nil if it is.
func (f *claimFacts) unbound() *cause {
	claim, class := f.claim, className(f.claim)
	c := &cause{since: claim.CreationTimestamp.Time, next: kubectl(claim.Namespace, "describe pvc", claim.Name),
		evidence: []Evidence{{KindClaim + "/" + claim.Name, "status.phase", cmp.Or(string(claim.Status.Phase), string(corev1.ClaimPending))}}}
	switch {
	case claim.Status.Phase == corev1.ClaimBound:
		return nil
	case claim.Status.Phase == corev1.ClaimLost:
		c.reason, c.text = "ClaimLost", fmt.Sprintf("has lost its volume %s, which was deleted with its data", claim.Spec.VolumeName)
	case claim.Spec.VolumeName != "" && f.volume == nil:
		c.reason, c.text = "VolumeMissing", fmt.Sprintf("asks for volume %s, which does not exist", claim.Spec.VolumeName)
		c.next = "berth kubectl get pv"
	case claim.Spec.VolumeName != "" && f.volume.Spec.ClaimRef != nil && f.volume.Spec.ClaimRef.UID != "" &&
		f.volume.Spec.ClaimRef.UID != claim.UID:
		holder := f.volume.Spec.ClaimRef
		c.reason, c.heldBy = "VolumeTaken", fmt.Sprintf("claim %s/%s", holder.Namespace, holder.Name)
		c.text = fmt.Sprintf("asks for volume %s, which claim %s/%s has", claim.Spec.VolumeName, holder.Namespace, holder.Name)
	case claim.Spec.VolumeName != "":
		c.reason, c.heldBy = "Binding", "kube-controller-manager"
		c.text = fmt.Sprintf("is being bound to volume %s", claim.Spec.VolumeName)
	case claim.Spec.StorageClassName != nil && class == "":
		c.reason, c.text = "NoMatchingVolume", `wants an existing volume (storageClassName ""), and none that is free fits`
		c.next = "berth kubectl get pv"
	case class == "":
		c.reason, c.text = "ClaimWithoutClass", "names no storage class and there is no default class"
		c.next = "berth kubectl get storageclass"
	case f.class == nil:
		c.reason, c.text = "ClassMissing", fmt.Sprintf("asks for storage class %q, which does not exist", class)
		c.evidence = append(c.evidence, Evidence{KindClaim + "/" + claim.Name, "spec.storageClassName", class})
		c.next = "berth kubectl get storageclass"
	default:
		f.provisioning(c)
	}
	return c
}

// provisioning says what a claim of an existing class waits for.
func (f *claimFacts) provisioning(c *cause) {
	claim := f.claim
	c.heldBy = "provisioner " + f.class.Provisioner
	waits := f.class.VolumeBindingMode != nil && *f.class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
	if source := snapshotSource(claim); source != "" {
		c.next = fmt.Sprintf("berth explain -n %s volumesnapshot/%s", claim.Namespace, source)
	}
	last, open := lastAttempt(f.record, timeline.StageProvisioning, timeline.StageSaving)
	failed := lastEvent(f.events, "ProvisioningFailed")
	switch {
	case last != nil:
		c.reason, c.text = "ProvisioningFailed", fmt.Sprintf("cannot be provisioned (attempt %d): %s", last.Attempt, last.Error)
		c.evidence = append(c.evidence, Evidence{"provisioner " + f.class.Provisioner, "stage " + last.Name, last.Error})
		c.remedy = last.Remedy
	case open != nil:
		c.reason, c.text = "Provisioning", fmt.Sprintf("is being provisioned by %s since %s", f.class.Provisioner, ago(f.now, open.Start))
	case waits && claim.Annotations[storagehelpers.AnnSelectedNode] == "":
		c.reason, c.heldBy = "WaitForFirstConsumer", "scheduler"
		c.text = "waits until the scheduler has chosen a node for a pod that uses it"
		if len(f.users) == 0 {
			c.text = "waits for the first pod that uses it; there is none yet"
		}
	case failed != nil:
		c.reason, c.text = "ProvisioningFailed", "cannot be provisioned: "+failed.Message
		c.evidence = append(c.evidence, Evidence{KindClaim + "/" + claim.Name, "event", failed.Reason + ": " + failed.Message})
	default:
		c.reason = "ProvisionerSilent"
		c.text = fmt.Sprintf("waits for provisioner %s of class %s, which has not answered: is it running?", f.class.Provisioner, f.class.Name)
		c.next = "berth kubectl get storageclass " + f.class.Name
	}
}

// snapshotSource returns the VolumeSnapshot that the claim's volume is to be created from, "" if there is none.
func snapshotSource(claim *corev1.PersistentVolumeClaim) string {
	source := claim.Spec.DataSource
	if source == nil || source.Kind != KindSnapshot {
		return ""
	}
	return source.Name
}

// lastAttempt is the newest stage of those names: the one that failed last and was not followed by a success, or one
// that goes on for the first time.
func lastAttempt(record timeline.Record, of ...string) (failed, open *timeline.Stage) {
	for i := len(record.Stages) - 1; i >= 0; i-- {
		stage := &record.Stages[i]
		switch {
		case !slices.Contains(of, stage.Name):
		case stage.Error != "":
			return stage, open
		case stage.Done():
			return nil, open
		case open == nil:
			open = stage
		}
	}
	return nil, open
}

func kubectl(namespace, verb, rest string) string {
	return strings.TrimRight(fmt.Sprintf("berth kubectl -n %s %s %s", namespace, verb, rest), " ")
}
