package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/suggest"
	"github.com/berth-dev/berth/timeline"
)

// Object kinds that can be explained.
const (
	KindPod        = "Pod"
	KindClaim      = "PersistentVolumeClaim"
	KindVolume     = "PersistentVolume"
	KindNode       = "Node"
	KindReplicaSet = "ReplicaSet"
	KindDeployment = "Deployment"
	KindService    = "Service"
	KindSnapshot   = "VolumeSnapshot"

	KindGroupSnapshot = "VolumeGroupSnapshot"
)

// kindInfo is a kind with kubectl's words for it; the first word is the one that Berth uses itself.
type kindInfo struct {
	name       string
	words      []string
	namespaced bool
	explain    func(ctx context.Context, src Source, namespace, name string) (*Explanation, error)
}

// kinds is a function because the explainers of owners look the kinds of what they own up in it.
func kinds() []kindInfo {
	return []kindInfo{
		{KindPod, []string{"pod", "pods", "po"}, true, explainPod},
		{KindClaim, []string{"pvc", "pvcs", "persistentvolumeclaim", "persistentvolumeclaims", "claim"}, true, explainClaim},
		{KindVolume, []string{"pv", "pvs", "persistentvolume", "persistentvolumes", "volume"}, false, explainVolume},
		{KindNode, []string{"node", "nodes", "no"}, false, explainNode},
		{KindReplicaSet, []string{"replicaset", "replicasets", "rs"}, true, explainReplicaSet},
		{KindDeployment, []string{"deployment", "deployments", "deploy"}, true, explainDeployment},
		{KindService, []string{"service", "services", "svc"}, true, explainService},
		{KindSnapshot, []string{"volumesnapshot", "volumesnapshots", "vs"}, true, explainSnapshot},
		{KindGroupSnapshot, []string{"volumegroupsnapshot", "volumegroupsnapshots", "vgs"}, true, explainGroupSnapshot},
	}
}

// Words lists the words that name the kind, the one to show first; nil for a kind that cannot be explained.
func Words(kind string) []string {
	for _, info := range kinds() {
		if info.name == kind {
			return info.words
		}
	}
	return nil
}

// ShortKind returns the word to show for a kind: the first of Words, or the kind in small letters.
func ShortKind(kind string) string {
	if words := Words(kind); len(words) > 0 {
		return words[0]
	}
	return strings.ToLower(kind)
}

// Kinds lists the kinds that can be explained.
func Kinds() []string {
	var names []string
	for _, info := range kinds() {
		names = append(names, info.name)
	}
	return names
}

// Namespaced reports whether objects of the kind lie in a namespace.
func Namespaced(kind string) bool {
	return slices.ContainsFunc(kinds(), func(info kindInfo) bool { return info.name == kind && info.namespaced })
}

// ParseKind reads a kind as kubectl does: singular, plural or short name, in any case. An error names the nearest
// word that is known.
func ParseKind(word string) (string, error) {
	word = strings.ToLower(word)
	word, _, _ = strings.Cut(word, ".") // "deployments.apps"
	var firsts, all []string
	for _, info := range kinds() {
		if slices.Contains(info.words, word) {
			return info.name, nil
		}
		firsts, all = append(firsts, info.words[0]), append(all, info.words...)
	}
	if near := suggest.Closest(word, all); near != "" {
		return "", fmt.Errorf("cannot explain %q: did you mean %q?", word, near)
	}
	return "", fmt.Errorf("cannot explain %q: %s are known", word, strings.Join(firsts, ", "))
}

// Source is what explanations are derived from.
type Source struct {
	// Client reads the API with its user's rights; Explanation.Unseen names what it may not read.
	Client kubernetes.Interface
	// Records may be nil: then stages have the times of API objects.
	Records Records
	// Network may be nil: then explanations do not see sockets, kube-proxy and DNS.
	Network Network
	// Clock may be nil for the real one.
	Clock clock.PassiveClock
}

func (s Source) now() time.Time {
	if s.Clock == nil {
		return time.Now()
	}
	return s.Clock.Now()
}

// slowAPIThreshold is the latency of the API server above which the explanation mentions it.
const slowAPIThreshold = 500 * time.Millisecond

// Explain explains one object. It returns an error for an unknown kind, or if the object cannot be read.
func Explain(ctx context.Context, src Source, kind, namespace, name string) (*Explanation, error) {
	for _, info := range kinds() {
		if info.name == kind {
			return info.explain(ctx, src, namespace, name)
		}
	}
	return nil, fmt.Errorf("cannot explain kind %q", kind)
}

func explainPod(ctx context.Context, src Source, namespace, name string) (*Explanation, error) {
	return Pod(ctx, src, namespace, name)
}

// inconclusiveReasons are the reasons that only say that a component has not acted yet.
var inconclusiveReasons = []string{"Starting", "Unscheduled", "NotObserved", "TooFewPods", "TooManyPods", "Binding", "Provisioning", "MountVolume",
	"AttachVolume", "Sandbox", "ProvisionerSilent", "Progressing", "EndpointsPending"}

// noteSlowAPI adds that the API server is slow. If the reason is inconclusive, that becomes the reason.
func (a *Explanation) noteSlowAPI(began, ended time.Time) {
	took := ended.Sub(began)
	if took < slowAPIThreshold {
		return
	}
	text := fmt.Sprintf("took %.1f s to respond for one object: it is slow or far away", took.Seconds())
	a.Evidence = append(a.Evidence, Evidence{Object: "API server", Field: "latency", Text: text})
	if !a.Stuck() {
		return
	}
	a.Verdict += "; the API server " + text
	if slices.Contains(inconclusiveReasons, a.Reason) {
		a.Reason, a.HeldBy = "APIServerSlow", "API server"
		a.Remedy = "check what the API server's machine is short of: CPU, memory, or disk speed for etcd"
	}
}

// builder builds the explanation of one object.
type builder struct {
	src    Source
	now    time.Time
	ref    timeline.Ref
	record timeline.Record
	unseen []string
}

// newBuilder returns a builder with the object's record.
func (s Source) newBuilder(ctx context.Context, ref timeline.Ref, now time.Time) *builder {
	q := &builder{src: s, now: now, ref: ref}
	if s.Records == nil {
		q.unseen = append(q.unseen, "stages: no running berth to query; times come from the API, to the second")
		return q
	}
	record, _, err := s.Records.Record(ctx, ref.UID)
	if err != nil {
		q.addUnseen("stages", err)
	}
	q.record = record
	return q
}

func (q *builder) addUnseen(what string, err error) {
	q.unseen = append(q.unseen, fmt.Sprintf("%s: %v", what, err))
}

// build returns the explanation with the finding.
func (q *builder) build(found *finding) *Explanation {
	return &Explanation{
		APIVersion: APIVersion, Kind: Kind, Object: q.ref,
		State: found.state, Reason: found.reason, Verdict: found.verdict, Since: found.since, HeldBy: found.heldBy,
		NextChangeAt: found.nextChangeAt, Stages: mergeStages([]timeline.Record{q.record}, q.now), Evidence: found.evidence,
		Remedy: found.remedy, Next: found.next, Unseen: q.unseen,
	}
}

// mergeStages returns the stages of records in the order of their starts.
func mergeStages(records []timeline.Record, now time.Time) []Stage {
	all := []Stage{}
	for _, record := range records {
		for _, stage := range record.Stages {
			all = append(all, Stage{Stage: stage, Object: record.Ref.Kind + "/" + record.Ref.Name})
		}
	}
	return alignStages(all, now)
}

// alignStages sorts the stages by their starts and sets their offsets from the first.
func alignStages(all []Stage, now time.Time) []Stage {
	slices.SortStableFunc(all, func(a, b Stage) int { return cmp.Compare(a.Start.UnixNano(), b.Start.UnixNano()) })
	for i := range all {
		end := all[i].End
		if !all[i].Done() {
			end = now
		}
		all[i].OffsetMs = millis(all[i].Start.Sub(all[0].Start))
		all[i].DurationMs = millis(end.Sub(all[i].Start))
	}
	return all
}

// hasStage reports whether the record has a stage of one of those names.
func hasStage(record timeline.Record, of ...string) bool {
	return slices.ContainsFunc(record.Stages, func(s timeline.Stage) bool { return slices.Contains(of, s.Name) })
}

// ago says how long ago t was.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return "for an unknown time"
	}
	d := now.Sub(t)
	if d < time.Minute {
		return fmt.Sprintf("%.1f s", max(d, 0).Seconds())
	}
	return d.Truncate(time.Second).String()
}
