package explain

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/timeline"
)

// snapshotFacts is the input of the verdict on a VolumeSnapshot.
type snapshotFacts struct {
	now      time.Time
	snapshot *api.VolumeSnapshot
	// restoring are the claims that wait for a volume with the snapshot's content.
	restoring []string
}

func explainSnapshot(ctx context.Context, src Source, namespace, name string) (*Explanation, error) {
	began := src.now()
	// A custom resource has no typed client here.
	data, err := src.Client.Discovery().RESTClient().Get().
		AbsPath("apis", api.GroupName, "v1", "namespaces", namespace, api.ResourceSnapshots, name).DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read volumesnapshot %s/%s: %w", namespace, name, err)
	}
	f := &snapshotFacts{snapshot: &api.VolumeSnapshot{}}
	if err := json.Unmarshal(data, f.snapshot); err != nil {
		return nil, fmt.Errorf("decode volumesnapshot %s/%s: %w", namespace, name, err)
	}
	f.now = src.now()
	q := src.newBuilder(ctx, timeline.RefOf(KindSnapshot, f.snapshot), f.now)
	claims, err := src.Client.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		q.addUnseen("persistentvolumeclaims", err)
	} else {
		f.readRestoring(claims.Items)
	}
	explanation := q.build(f.explain())
	if len(explanation.Stages) == 0 {
		explanation.Stages = alignStages([]Stage{apiMark(KindSnapshot, name, timeline.StageAccepted, f.snapshot.CreationTimestamp.Time)}, f.now)
	}
	explanation.noteSlowAPI(began, f.now)
	return explanation, nil
}

func (f *snapshotFacts) readRestoring(claims []corev1.PersistentVolumeClaim) {
	for i := range claims {
		source := claims[i].Spec.DataSource
		if source != nil && source.Kind == KindSnapshot && ptr.Deref(source.APIGroup, "") == api.GroupName &&
			source.Name == f.snapshot.Name && claims[i].Status.Phase == corev1.ClaimPending {
			f.restoring = append(f.restoring, claims[i].Name)
		}
	}
}

func (f *snapshotFacts) explain() *finding {
	s := f.snapshot
	object := KindSnapshot + "/" + s.Name
	status := s.Status
	if status == nil {
		status = &api.VolumeSnapshotStatus{}
	}
	found := &finding{state: Waiting, since: s.CreationTimestamp.Time, next: kubectl(s.Namespace, "describe volumesnapshot", s.Name)}
	switch {
	case s.DeletionTimestamp != nil:
		return f.terminating(found)
	case status.Error != nil && !ptr.Deref(status.ReadyToUse, false):
		message := ptr.Deref(status.Error.Message, "no reason is given")
		found.reason = "SnapshotFailed"
		found.verdict = fmt.Sprintf("waiting %s: it cannot be taken: %s", ago(f.now, found.since), message)
		found.evidence = []Evidence{{object, "status.error.message", message}}
	case status.BoundContentName == nil:
		found.reason, found.heldBy = "SnapshotControllerSilent", "snapshot controller"
		found.verdict = fmt.Sprintf("waiting %s: no snapshot controller has responded: is one running?", ago(f.now, found.since))
		found.remedy = "run `berth controllers --controllers snapshot`, or snapshot-controller of external-snapshotter"
	case !ptr.Deref(status.ReadyToUse, false):
		found.reason, found.heldBy = "SnapshotPending", "the CSI driver"
		found.verdict = fmt.Sprintf("waiting %s: its driver is taking it", ago(f.now, found.since))
		found.evidence = []Evidence{{object, "status.boundVolumeSnapshotContentName", *status.BoundContentName}}
		found.next = "berth kubectl describe volumesnapshotcontent " + *status.BoundContentName
	default:
		found.state, found.reason = Ready, "ReadyToUse"
		found.verdict = "ready: volumes can be created from it"
		if status.RestoreSize != nil {
			found.verdict += ", of at least " + status.RestoreSize.String()
		}
		found.evidence = []Evidence{{object, "status.boundVolumeSnapshotContentName", ptr.Deref(status.BoundContentName, "")}}
	}
	return found
}

// terminating says why a VolumeSnapshot that is being deleted still exists.
func (f *snapshotFacts) terminating(found *finding) *finding {
	s := f.snapshot
	held := cmp.Or(strings.Join(s.Finalizers, ", "), "nothing")
	found.state, found.reason, found.since, found.heldBy = Terminating, "Finalizer", s.DeletionTimestamp.Time, held
	found.verdict = fmt.Sprintf("deleting for %s: held by finalizer %s", ago(f.now, found.since), held)
	found.evidence = []Evidence{{KindSnapshot + "/" + s.Name, "metadata.finalizers", held}}
	if len(f.restoring) > 0 {
		found.reason, found.heldBy = "InUse", names("claim", f.restoring)
		found.verdict = fmt.Sprintf("deleting for %s: still the source of %s, which wait for a volume; it is removed when they are bound or deleted",
			ago(f.now, found.since), names("claim", f.restoring))
		found.next = kubectl(s.Namespace, "get pvc", strings.Join(f.restoring, " "))
	}
	return found
}
