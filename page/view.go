package page

import (
	"context"
	"fmt"
	"html/template"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/timeline"
)

// document is what a page shows: blocks below one another.
type document struct {
	Title, Nav string
	Blocks     []block
	// again is when the page is to be rendered again without a change, because it shows elapsed time; zero for never. pause is
	// the least time between two renderings.
	again, pause time.Duration
}

// block is a part of a page that is replaced as a whole, or a list whose items are.
type block struct {
	ID, HTML, Label string
	List            bool
	Items           []item
}

// item is an element of a list. Age is the elapsed time in its HTML, which a browser counts by itself.
type item struct{ ID, HTML, Age string }

// content is the HTML without the elapsed time: what makes the item a new one.
func (i item) content() string {
	if i.Age == "" {
		return i.HTML
	}
	return strings.Replace(i.HTML, ">"+i.Age+"<", "><", 1)
}

// Content is the block's HTML.
func (b block) Content() template.HTML { return template.HTML(b.HTML) } //nolint:gosec // made by a template, which escapes

// Content is the item's HTML.
func (i item) Content() template.HTML { return template.HTML(i.HTML) } //nolint:gosec // made by a template, which escapes

// view is one page's address.
type view struct {
	name                  string // now, cluster, compare or object
	kind, namespace, what string // of an object
	query                 url.Values
}

// parseView reads the path of a page: "/", "/cluster", "/compare", "/pod/NAMESPACE/NAME", "/node/NAME".
func parseView(u *url.URL) (view, bool) {
	v := view{query: u.Query()}
	parts := strings.Split(strings.Trim(u.Path, "/"), "/")
	switch {
	case u.Path == "/":
		v.name = "now"
		return v, true
	case len(parts) == 1 && (parts[0] == "cluster" || parts[0] == "compare"):
		v.name = parts[0]
		return v, true
	}
	kind, err := explain.ParseKind(parts[0])
	want := 2
	if explain.Namespaced(kind) {
		want = 3
	}
	if err != nil || len(parts) != want {
		return v, false
	}
	v.name, v.kind, v.what = "object", kind, parts[want-1]
	if want == 3 {
		v.namespace = parts[1]
	}
	return v, true
}

// link is the path of an object's page; empty for a kind without one.
func link(kind, namespace, name string) string {
	words := explain.Words(kind)
	if len(words) == 0 {
		return ""
	}
	path := "/" + words[0]
	if explain.Namespaced(kind) {
		path += "/" + url.PathEscape(namespace)
	}
	return path + "/" + url.PathEscape(name)
}

func isNotFound(err error) bool { return apierrors.IsNotFound(err) }

// render returns the current document of the view.
// The memory, which may be nil, has what an earlier rendering for the same browser found.
func (v view) render(ctx context.Context, h *hub, now time.Time, m *memory) (*document, error) {
	switch v.name {
	case "now":
		return h.nowPage(ctx, now)
	case "cluster":
		return h.clusterPage(ctx, now)
	case "compare":
		return h.comparePage(ctx, newComparison(v.query))
	}
	return h.objectPage(ctx, v, now, m)
}

// recently is how long an object that became ready is listed.
const recently = 5 * time.Minute

// maxRecent bounds the list of what became ready.
const maxRecent = 15

// nowPage shows what is not running, and what became ready.
func (h *hub) nowPage(ctx context.Context, now time.Time) (*document, error) {
	candidates, unseen, err := explain.Candidates(ctx, h.source, h.namespace, "")
	if err != nil {
		return nil, err
	}
	h.rowsMu.Lock()
	defer h.rowsMu.Unlock()
	ready, podCount := h.becameReady(now)
	var rows []*row
	for _, candidate := range candidates {
		if r := h.explainRow(ctx, candidate, now); r != nil && r.explanation.Stuck() {
			rows = append(rows, r)
		}
	}
	var recent []item
	for _, candidate := range ready {
		if r := h.explainRow(ctx, candidate, now); r != nil && !r.explanation.Stuck() {
			recent = append(recent, r.item())
		}
	}
	h.dropRows(candidates, ready)
	slices.SortStableFunc(rows, func(a, b *row) int { return a.explanation.Since.Compare(b.explanation.Since) })
	summary := nowSummary{Stuck: len(rows), Pods: podCount, Recent: len(recent), Unseen: unseen}
	var items []item
	for _, r := range rows {
		if r.explanation.State == explain.Failed {
			summary.Failed++
		}
		items = append(items, r.item())
	}
	return &document{Title: "Now", Nav: "now", again: rowLifetime, pause: minPause, Blocks: []block{
		{ID: "summary", HTML: fragmentHTML("now", summary)},
		{ID: "stuck", List: true, Label: "Not running", Items: items},
		{ID: "recent-head", HTML: fragmentHTML("recent", summary)},
		{ID: "recent", List: true, Label: "Became ready", Items: recent},
	}}, nil
}

// nowSummary is the head of the page.
type nowSummary struct {
	Stuck, Failed, Pods, Recent int
	Unseen                      []string
}

// dropRows forgets rows that are shown no more. The caller holds rowsMu.
func (h *hub) dropRows(lists ...[]explain.Candidate) {
	kept := make(map[string]bool)
	for _, list := range lists {
		for _, candidate := range list {
			kept[string(candidate.UID)] = true
		}
	}
	for uid := range h.rows {
		if !kept[string(uid)] {
			delete(h.rows, uid)
		}
	}
}

// becameReady returns the Pods that became ready recently, the last first, and the number of all Pods.
func (h *hub) becameReady(now time.Time) (ready []explain.Candidate, count int) {
	type readyPod struct {
		explain.Candidate
		at time.Time
	}
	var found []readyPod
	h.eachPod("", func(pod *corev1.Pod) {
		count++
		condition := podutil.FindCondition(&pod.Status, corev1.PodReady)
		if condition != nil && condition.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil && now.Sub(condition.LastTransitionTime.Time) < recently {
			found = append(found, readyPod{explain.Candidate{Kind: explain.KindPod, Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
				condition.LastTransitionTime.Time})
		}
	})
	slices.SortStableFunc(found, func(a, b readyPod) int { return b.at.Compare(a.at) })
	for _, pod := range found[:min(len(found), maxRecent)] {
		ready = append(ready, pod.Candidate)
	}
	return ready, count
}

// memory is the explanation that an object's page showed last.
type memory struct {
	explanation *explain.Explanation
	at          time.Time
	// changed is set when something may have changed since.
	changed bool
}

// current returns the explanation at this moment: while nothing changes, only its open stages grow.
func (m *memory) current(ctx context.Context, h *hub, v view, now time.Time) (*explain.Explanation, error) {
	if m.explanation != nil && !m.changed && now.Sub(m.at) < rowLifetime {
		grown := *m.explanation
		grown.Stages = slices.Clone(grown.Stages)
		for i := range grown.Stages {
			if stage := &grown.Stages[i]; !stage.Done() {
				stage.DurationMs = float64(now.Sub(stage.Start)) / float64(time.Millisecond)
			}
		}
		return &grown, nil
	}
	m.changed = false
	explanation, err := h.explain(ctx, v.kind, v.namespace, v.what)
	m.explanation, m.at = explanation, now
	return explanation, err
}

// objectPage shows one object.
func (h *hub) objectPage(ctx context.Context, v view, now time.Time, m *memory) (*document, error) {
	if h.namespace != "" && v.namespace != "" && v.namespace != h.namespace {
		return nil, fmt.Errorf("this page shows namespace %s alone: %w", h.namespace, apierrors.NewNotFound(schema.GroupResource{Resource: v.kind}, v.what))
	}
	if m == nil {
		m = &memory{}
	}
	explanation, err := m.current(ctx, h, v, now)
	if err != nil {
		return nil, err
	}
	o, err := newObjectView(explanation, "o", now)
	if err != nil {
		return nil, err
	}
	page := &document{Title: o.Label, Nav: "object", pause: minPause, Blocks: []block{
		{ID: "object", HTML: fragmentHTML("object", o)},
		{ID: "relations", HTML: fragmentHTML("relations", h.relations(ctx, explanation.Object))},
		{ID: "stages", HTML: fragmentHTML("stages", o.Picture)},
		{ID: "evidence", HTML: fragmentHTML("evidence", o.Evidence) + fragmentHTML("unseen", o.Unseen)},
		{ID: "events", HTML: fragmentHTML("events", h.eventsOf(explanation.Object, now))},
	}}
	if v.kind == explain.KindPod {
		page.Blocks = append(page.Blocks, block{ID: "log"})
	}
	if explanation.Stuck() {
		page.again = time.Second
	}
	return page, nil
}

// eventView is an event for the templates.
type eventView struct {
	At                       *moment
	Type, Reason, Text, From string
	Count                    int32
}

// maxEvents bounds the events that an object's page shows.
const maxEvents = 30

// eventsOf returns the events of an object, the newest first.
func (h *hub) eventsOf(ref timeline.Ref, now time.Time) []eventView {
	found, err := h.informers.of[events].GetIndexer().ByIndex(byInvolved, string(ref.UID))
	if err != nil {
		return nil // the index exists
	}
	list := make([]*corev1.Event, 0, len(found))
	for _, event := range found {
		list = append(list, event.(*corev1.Event))
	}
	slices.SortStableFunc(list, func(a, b *corev1.Event) int { return eventTime(b).Compare(eventTime(a)) })
	var views []eventView
	for _, event := range list[:min(len(list), maxEvents)] {
		count := event.Count
		if event.Series != nil {
			count = event.Series.Count
		}
		views = append(views, eventView{
			At: newMoment(eventTime(event), now), Type: event.Type, Reason: event.Reason, Text: event.Message,
			From: firstOf(event.ReportingController, event.Source.Component), Count: count,
		})
	}
	return views
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// eventTime is when the event occurred last.
func eventTime(event *corev1.Event) time.Time {
	switch {
	case event.Series != nil && !event.Series.LastObservedTime.IsZero():
		return event.Series.LastObservedTime.Time
	case !event.LastTimestamp.IsZero():
		return event.LastTimestamp.Time
	case !event.EventTime.IsZero():
		return event.EventTime.Time
	}
	return event.CreationTimestamp.Time
}
