package explain

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/timeline"
)

func explainVolume(ctx context.Context, src Source, _, name string) (*Explanation, error) {
	began := src.now()
	pv, err := src.Client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read persistentvolume %s: %w", name, err)
	}
	now := src.now()
	q := src.newBuilder(ctx, timeline.RefOf(KindVolume, pv), now)
	found := volumeState(pv, q.record, now)
	events := readEvents(ctx, src.Client, metav1.NamespaceAll, pv.UID, q.addUnseen)
	if event := lastEvent(events, "VolumeFailedDelete"); event != nil && found.reason == "Released" {
		found.reason, found.verdict = "DeleteFailed", found.verdict+"; its deletion failed: "+event.Message
		found.evidence = append(found.evidence, Evidence{KindVolume + "/" + name, "event", event.Reason + ": " + event.Message})
	}
	for _, attachment := range readAttachments(ctx, src.Client, name, q.addUnseen) {
		text := "is attached"
		switch {
		case attachment.DeletionTimestamp != nil:
			text = "is being detached"
		case !attachment.Status.Attached:
			text = "is being attached"
		}
		if problem := attachProblem(&attachment); problem != "" {
			text += ": " + problem
		}
		found.evidence = append(found.evidence, Evidence{"VolumeAttachment/" + attachment.Name, "node " + attachment.Spec.NodeName, text})
	}
	explanation := q.build(found)
	if len(explanation.Stages) == 0 {
		explanation.Stages = alignStages([]Stage{apiMark(KindVolume, name, timeline.StageAccepted, pv.CreationTimestamp.Time)}, now)
	}
	explanation.noteSlowAPI(began, now)
	return explanation, nil
}

func volumeState(pv *corev1.PersistentVolume, record timeline.Record, now time.Time) *finding {
	object := KindVolume + "/" + pv.Name
	since := pv.CreationTimestamp.Time
	if pv.Status.LastPhaseTransitionTime != nil {
		since = pv.Status.LastPhaseTransitionTime.Time
	}
	claim := "no claim"
	if ref := pv.Spec.ClaimRef; ref != nil {
		claim = fmt.Sprintf("claim %s/%s", ref.Namespace, ref.Name)
	}
	found := &finding{state: Ready, reason: string(pv.Status.Phase), since: since,
		evidence: []Evidence{{object, "status.phase", string(pv.Status.Phase)}}, next: "berth kubectl describe pv " + pv.Name}
	failed, open := lastAttempt(record, timeline.StageReclaim)
	switch {
	case failed != nil && (pv.DeletionTimestamp != nil || pv.Status.Phase != corev1.VolumeBound):
		found.state, found.reason = Waiting, "DeleteFailed"
		found.verdict = fmt.Sprintf("released by %s; it cannot be deleted (attempt %d): %s", claim, failed.Attempt, failed.Error)
		found.evidence = append(found.evidence, Evidence{object, "stage " + failed.Name, failed.Error})
	case pv.DeletionTimestamp != nil:
		since = pv.DeletionTimestamp.Time
		found.state, found.reason, found.since = Terminating, "Finalizer", since
		found.heldBy = strings.Join(pv.Finalizers, ", ")
		found.verdict = fmt.Sprintf("deleting for %s: held by finalizer %s", ago(now, since), found.heldBy)
		if open != nil {
			found.reason, found.verdict = "Reclaiming", fmt.Sprintf("deleting for %s: its data is being deleted", ago(now, since))
		} else if pv.Status.Phase == corev1.VolumeBound {
			found.reason, found.heldBy = "InUse", claim
			found.verdict = fmt.Sprintf("deleting for %s: still bound to %s; it is removed when the claim is deleted", ago(now, since), claim)
		}
		found.evidence = append(found.evidence, Evidence{object, "metadata.finalizers", strings.Join(pv.Finalizers, ", ")})
	case pv.Status.Phase == corev1.VolumeBound:
		found.verdict, found.next = "bound to "+claim, ""
	case pv.Status.Phase == corev1.VolumeReleased && pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete:
		found.state = Waiting
		found.verdict = fmt.Sprintf("waiting %s: released by %s, its provisioner has to delete it", ago(now, since), claim)
	case pv.Status.Phase == corev1.VolumeReleased:
		found.state = Waiting
		found.verdict = fmt.Sprintf("released by %s %s ago and kept with its data (reclaim policy %s): it stays unused until you delete it "+
			"or clear spec.claimRef", claim, ago(now, since), pv.Spec.PersistentVolumeReclaimPolicy)
	case pv.Status.Phase == corev1.VolumeFailed:
		found.state, found.verdict = Failed, "failed: "+pv.Status.Message
		found.evidence = append(found.evidence, Evidence{object, "status.message", pv.Status.Message})
	default:
		found.reason, found.verdict, found.next = string(corev1.VolumeAvailable), "available: it is not bound to a claim", ""
	}
	return found
}

// readAttachments reads the VolumeAttachments of one volume.
func readAttachments(ctx context.Context, client kubernetes.Interface, volume string, miss func(string, error),
) []storagev1.VolumeAttachment {
	list, err := client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		miss("volumeattachments", err)
		return nil
	}
	var ours []storagev1.VolumeAttachment
	for _, attachment := range list.Items {
		if name := attachment.Spec.Source.PersistentVolumeName; name != nil && *name == volume {
			ours = append(ours, attachment)
		}
	}
	return ours
}

func attachProblem(attachment *storagev1.VolumeAttachment) string {
	switch {
	case attachment.Status.DetachError != nil:
		return attachment.Status.DetachError.Message
	case attachment.Status.AttachError != nil:
		return attachment.Status.AttachError.Message
	}
	return ""
}

// attachFacts are the facts about attaching one volume of a Pod to the Pod's node.
type attachFacts struct {
	volume       string // the name of the PersistentVolume
	driver       string // of CSI, else empty
	exclusive    bool   // may be on one node only
	unregistered bool   // the driver is not registered on the Pod's node
	attachments  []storagev1.VolumeAttachment
}

// readAttach reads the volumes of the Pod's bound claims, of drivers that attach.
func (f *facts) readAttach(ctx context.Context, client kubernetes.Interface) {
	var csiNode *storagev1.CSINode
	var csiNodeErr error
	for _, c := range f.claims {
		if c.object == nil || c.object.Spec.VolumeName == "" {
			continue
		}
		pv, err := client.CoreV1().PersistentVolumes().Get(ctx, c.object.Spec.VolumeName, metav1.GetOptions{})
		if err != nil {
			f.addUnseen("persistentvolume "+c.object.Spec.VolumeName, err)
			continue
		}
		if pv.Spec.CSI == nil {
			continue
		}
		a := attachFacts{volume: pv.Name, driver: pv.Spec.CSI.Driver, attachments: readAttachments(ctx, client, pv.Name, f.addUnseen)}
		a.exclusive = len(pv.Spec.AccessModes) > 0
		for _, mode := range pv.Spec.AccessModes {
			a.exclusive = a.exclusive && mode != corev1.ReadWriteMany && mode != corev1.ReadOnlyMany
		}
		if csiNode == nil {
			csiNode, csiNodeErr = client.StorageV1().CSINodes().Get(ctx, f.pod.Spec.NodeName, metav1.GetOptions{})
			if csiNodeErr != nil && !apierrors.IsNotFound(csiNodeErr) {
				f.addUnseen("csinode "+f.pod.Spec.NodeName, csiNodeErr)
			}
		}
		if csiNodeErr == nil || apierrors.IsNotFound(csiNodeErr) {
			a.unregistered = !registered(csiNode, a.driver)
		}
		f.attach = append(f.attach, a)
	}
	f.readHeartbeats(ctx, client)
}

func registered(node *storagev1.CSINode, driver string) bool {
	if node == nil {
		return false
	}
	for _, known := range node.Spec.Drivers {
		if known.Name == driver {
			return true
		}
	}
	return false
}

// readHeartbeats reads the last heartbeats of the nodes that have a volume which the Pod waits for.
func (f *facts) readHeartbeats(ctx context.Context, client kubernetes.Interface) {
	f.heartbeats = make(map[string]time.Time)
	for _, a := range f.attach {
		for _, attachment := range a.attachments {
			name := attachment.Spec.NodeName
			if _, known := f.heartbeats[name]; known || name == f.pod.Spec.NodeName {
				continue
			}
			lease, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, name, metav1.GetOptions{})
			switch {
			case err == nil && lease.Spec.RenewTime != nil:
				f.heartbeats[name] = lease.Spec.RenewTime.Time
			case err != nil && !apierrors.IsNotFound(err):
				f.addUnseen("lease of node "+name, err)
			}
		}
	}
}

// podAttach says why a volume is not attached to the Pod's node.
func podAttach(f *facts) *finding {
	if f.started() {
		return nil
	}
	since := f.pod.CreationTimestamp.Time
	for _, a := range f.attach {
		object := KindVolume + "/" + a.volume
		if a.unregistered {
			return &finding{state: Waiting, reason: "DriverNotRegistered", since: since, heldBy: "driver " + a.driver,
				verdict: fmt.Sprintf("waiting %s: volume %s needs CSI driver %s, which is not registered on node %s", f.ago(since), a.volume,
					a.driver, f.pod.Spec.NodeName),
				evidence: []Evidence{{"CSINode/" + f.pod.Spec.NodeName, "spec.drivers", "lacks " + a.driver}, {object, "spec.csi.driver", a.driver}},
				next:     "berth kubectl get csinode " + f.pod.Spec.NodeName + " -o yaml"}
		}
		if found := f.attachmentFinding(a, object); found != nil {
			return found
		}
	}
	return f.attachStageFinding(since)
}

// attachmentFinding returns the finding about a volume that is attached to another node, or that failed to attach.
func (f *facts) attachmentFinding(a attachFacts, object string) *finding {
	since := f.pod.CreationTimestamp.Time
	for i := range a.attachments {
		attachment := &a.attachments[i]
		where := attachment.Spec.NodeName
		evidence := []Evidence{{"VolumeAttachment/" + attachment.Name, "spec.nodeName", where}}
		if where == f.pod.Spec.NodeName {
			problem := attachProblem(attachment)
			if attachment.Status.Attached {
				continue
			}
			if problem == "" {
				since := attachment.CreationTimestamp.Time
				evidence[0].Field, evidence[0].Text = "status.attached", "false"
				return &finding{state: Waiting, reason: "AttachVolume", since: since, heldBy: "attacher of driver " + a.driver, evidence: evidence,
					verdict: fmt.Sprintf("waiting %s: volume %s is to be attached to node %s; the attacher of driver %s was called %s ago and has "+
						"not responded", f.ago(f.pod.CreationTimestamp.Time), a.volume, where, a.driver, f.ago(since)),
					remedy: "check that the attacher of driver " + a.driver + " (beside its controller plugin) is running",
					next:   "berth kubectl describe volumeattachment " + attachment.Name}
			}
			evidence[0].Field, evidence[0].Text = "status.attachError", problem
			return &finding{state: Waiting, reason: "FailedAttachVolume", since: since, heldBy: "driver " + a.driver, evidence: evidence,
				verdict: fmt.Sprintf("waiting %s: volume %s cannot be attached to node %s: %s", f.ago(since), a.volume, where, problem),
				next:    "berth kubectl describe volumeattachment " + attachment.Name}
		}
		if !a.exclusive {
			continue
		}
		found := &finding{state: Waiting, reason: "VolumeHeld", since: since, heldBy: "node " + where, evidence: evidence,
			verdict: fmt.Sprintf("waiting %s: volume %s is attached to node %s for %s", f.ago(since), a.volume, where,
				f.ago(attachment.CreationTimestamp.Time)),
			next: "berth explain pv/" + a.volume}
		if heartbeat, ok := f.heartbeats[where]; ok {
			found.verdict += fmt.Sprintf(" (last heartbeat of that node %s ago)", f.ago(heartbeat))
			found.evidence = append(found.evidence, Evidence{"Lease/" + where, "spec.renewTime", heartbeat.UTC().Format(time.RFC3339)})
		}
		if attachment.DeletionTimestamp != nil {
			found.verdict += "; it is being detached"
		}
		if text := f.lastErrorOf(timeline.StageAttach); text != "" {
			found.verdict += ": " + text
			found.evidence = append(found.evidence, Evidence{object, "stage " + timeline.StageAttach, text})
		}
		return found
	}
	return nil
}

// attachStageFinding returns the finding of the attach/detach controller's own record.
func (f *facts) attachStageFinding(since time.Time) *finding {
	stage := f.openStage(timeline.StageAttach)
	if stage == nil {
		return nil
	}
	found := &finding{state: Waiting, reason: "AttachVolume", since: stage.Start, heldBy: stage.Owner,
		verdict: fmt.Sprintf("waiting %s: volume %s is being attached", f.ago(stage.Start), stage.Subject),
		next:    "berth kubectl get volumeattachments"}
	if failed := f.lastFailure(timeline.StageAttach, stage.Subject); failed != nil {
		found.reason, found.since, found.remedy = cmp.Or(failed.Reason, "FailedAttachVolume"), since, failed.Remedy
		found.verdict = fmt.Sprintf("waiting %s: volume %s cannot be attached (attempt %d): %s", f.ago(since), stage.Subject, stage.Attempt,
			failed.Error)
		found.evidence = []Evidence{{"Pod/" + f.pod.Name, "stage " + timeline.StageAttach, failed.Error}}
		if cause := failed.Cause; cause != nil && cause.Kind == KindNode {
			found.heldBy = "node " + cause.Name
		}
	}
	return found
}
