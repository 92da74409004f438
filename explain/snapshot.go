package explain

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/provision/snapshot"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/provision/snapshot/groupapi"
	"github.com/berth-dev/berth/timeline"
)

// snapshotFacts is the input of the verdict on a VolumeSnapshot or a VolumeGroupSnapshot.
type snapshotFacts struct {
	now time.Time
	metav1.ObjectMeta
	kind string
	// failure is the message of the error in its status; nil if there is none.
	failure *string
	ready   bool
	// content is the name of its content, "" if it is not bound; contentField is the field that has it.
	content, contentField string
	// size is appended to the verdict on one that is ready.
	size string
	// snapshots are the VolumeSnapshots that volumes can be created from: itself, or the members of the group.
	snapshots []string
	// restoring are the claims that wait for a volume with the content of one of them.
	restoring []string
}

func explainSnapshot(ctx context.Context, src Source, namespace, name string) (*Explanation, error) {
	s := &api.VolumeSnapshot{}
	began := src.now()
	if err := src.readCustom(ctx, s, "volumesnapshot", namespace, name, api.GroupName, api.GroupVersion.Version, api.ResourceSnapshots); err != nil {
		return nil, err
	}
	f := &snapshotFacts{kind: KindSnapshot, ObjectMeta: s.ObjectMeta, contentField: "status.boundVolumeSnapshotContentName", snapshots: []string{s.Name}}
	if status := s.Status; status != nil {
		f.setStatus(status.Error, status.ReadyToUse, status.BoundContentName)
		if status.RestoreSize != nil {
			f.size = ", of at least " + status.RestoreSize.String()
		}
	}
	return f.explanation(ctx, src, began, nil), nil
}

func explainGroupSnapshot(ctx context.Context, src Source, namespace, name string) (*Explanation, error) {
	g := &groupapi.VolumeGroupSnapshot{}
	began := src.now()
	version := groupapi.GroupVersion.Version
	if err := src.readCustom(ctx, g, "volumegroupsnapshot", namespace, name, groupapi.GroupName, version, groupapi.ResourceGroups); err != nil {
		return nil, err
	}
	f := &snapshotFacts{kind: KindGroupSnapshot, ObjectMeta: g.ObjectMeta, contentField: "status.boundVolumeGroupSnapshotContentName"}
	if status := g.Status; status != nil {
		f.setStatus(status.Error, status.ReadyToUse, status.BoundContentName)
	}
	list := &api.VolumeSnapshotList{}
	err := src.readCustom(ctx, list, "volumesnapshots of", namespace, "", api.GroupName, api.GroupVersion.Version, api.ResourceSnapshots)
	for i := range list.Items {
		if owner := snapshot.GroupOf(&list.Items[i]); owner != nil && owner.UID == g.UID {
			f.snapshots = append(f.snapshots, list.Items[i].Name)
		}
	}
	f.size = fmt.Sprintf(", by its %d VolumeSnapshots", len(f.snapshots))
	return f.explanation(ctx, src, began, err), nil
}

// readCustom reads a custom resource, for which there is no typed client here, or a list of them if name is "".
func (s Source) readCustom(ctx context.Context, into any, what, namespace, name, group, version, resource string) error {
	path := []string{"apis", group, version, "namespaces", namespace, resource}
	if name != "" {
		path = append(path, name)
	}
	data, err := s.Client.Discovery().RESTClient().Get().AbsPath(path...).DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("read %s %s/%s: %w", what, namespace, name, err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("decode %s %s/%s: %w", what, namespace, name, err)
	}
	return nil
}

func (f *snapshotFacts) setStatus(failed *api.Error, ready *bool, content *string) {
	f.ready, f.content = ptr.Deref(ready, false), ptr.Deref(content, "")
	if failed != nil {
		f.failure = ptr.To(ptr.Deref(failed.Message, "no reason is given"))
	}
}

// explanation reads the claims that are created from the snapshots, and returns the explanation. unseen is the error of a read of
// its members.
func (f *snapshotFacts) explanation(ctx context.Context, src Source, began time.Time, unseen error) *Explanation {
	f.now = src.now()
	q := src.newBuilder(ctx, timeline.Ref{Kind: f.kind, Namespace: f.Namespace, Name: f.Name, UID: f.UID}, f.now)
	if unseen != nil {
		q.addUnseen("volumesnapshots", unseen)
	}
	claims, err := src.Client.CoreV1().PersistentVolumeClaims(f.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		q.addUnseen("persistentvolumeclaims", err)
	} else {
		f.readRestoring(claims.Items)
	}
	explanation := q.build(f.explain())
	if len(explanation.Stages) == 0 {
		explanation.Stages = alignStages([]Stage{apiMark(f.kind, f.Name, timeline.StageAccepted, f.CreationTimestamp.Time)}, f.now)
	}
	explanation.noteSlowAPI(began, f.now)
	return explanation
}

func (f *snapshotFacts) readRestoring(claims []corev1.PersistentVolumeClaim) {
	for i := range claims {
		source := claims[i].Spec.DataSource
		if source != nil && source.Kind == KindSnapshot && ptr.Deref(source.APIGroup, "") == api.GroupName &&
			slices.Contains(f.snapshots, source.Name) && claims[i].Status.Phase == corev1.ClaimPending {
			f.restoring = append(f.restoring, claims[i].Name)
		}
	}
}

func (f *snapshotFacts) explain() *finding {
	object, word := f.kind+"/"+f.Name, strings.ToLower(f.kind)
	found := &finding{state: Waiting, since: f.CreationTimestamp.Time, next: kubectl(f.Namespace, "describe "+word, f.Name)}
	switch {
	case f.DeletionTimestamp != nil:
		return f.terminating(found)
	case f.failure != nil && !f.ready:
		found.reason = "SnapshotFailed"
		found.verdict = fmt.Sprintf("waiting %s: it cannot be taken: %s", ago(f.now, found.since), *f.failure)
		found.evidence = []Evidence{{object, "status.error.message", *f.failure}}
	case f.content == "":
		found.reason, found.heldBy = "SnapshotControllerSilent", "snapshot controller"
		found.verdict = fmt.Sprintf("waiting %s: no snapshot controller has responded: is one running?", ago(f.now, found.since))
		found.remedy = "run `berth controllers --controllers snapshot`, or snapshot-controller of external-snapshotter"
		if f.kind == KindGroupSnapshot {
			found.remedy += " with --feature-gates=CSIVolumeGroupSnapshot=true"
		}
	case !f.ready:
		found.reason, found.heldBy = "SnapshotPending", "the CSI driver"
		found.verdict = fmt.Sprintf("waiting %s: its driver is taking it", ago(f.now, found.since))
		found.evidence = []Evidence{{object, f.contentField, f.content}}
		found.next = "berth kubectl describe " + word + "content " + f.content
	default:
		found.state, found.reason = Ready, "ReadyToUse"
		found.verdict = "ready: volumes can be created from it" + f.size
		found.evidence = []Evidence{{object, f.contentField, f.content}}
	}
	return found
}

// terminating says why an object that is being deleted still exists.
func (f *snapshotFacts) terminating(found *finding) *finding {
	held := cmp.Or(strings.Join(f.Finalizers, ", "), "nothing")
	found.state, found.reason, found.since, found.heldBy = Terminating, "Finalizer", f.DeletionTimestamp.Time, held
	found.verdict = fmt.Sprintf("deleting for %s: held by finalizer %s", ago(f.now, found.since), held)
	found.evidence = []Evidence{{f.kind + "/" + f.Name, "metadata.finalizers", held}}
	if len(f.restoring) > 0 {
		found.reason, found.heldBy = "InUse", names("claim", f.restoring)
		found.verdict = fmt.Sprintf("deleting for %s: still the source of %s, which wait for a volume; it is removed when they are bound or deleted",
			ago(f.now, found.since), names("claim", f.restoring))
		found.next = kubectl(f.Namespace, "get pvc", strings.Join(f.restoring, " "))
	}
	return found
}
