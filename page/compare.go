package page

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/page/waterfall"
	"github.com/berth-dev/berth/timeline"
)

// defaultCompared and maxCompared are how many Pods are compared.
const (
	defaultCompared = 100
	maxCompared     = 2000
)

// stageStat is how long a stage lasted in many Pods.
type stageStat struct {
	Name, Holder, Class           string
	Count                         int
	P50, P95, P99, Change, Faster string
	at, p50, p95, slower          float64
}

// comparison says which starts are compared.
type comparison struct {
	count            int
	namespace, owner string // empty for all
}

// newComparison reads the query of the page's address: n is how many Pods, ns their namespace, owner what they belong to.
func newComparison(query url.Values) comparison {
	count, err := strconv.Atoi(query.Get("n"))
	if err != nil || count < 2 || count > maxCompared {
		count = defaultCompared
	}
	return comparison{count: count, namespace: query.Get("ns"), owner: query.Get("owner")}
}

// link is the address of the page with another number of Pods or another owner.
func (c comparison) link(count int, owner string) string {
	query := url.Values{"n": {strconv.Itoa(count)}}
	for name, value := range map[string]string{"ns": c.namespace, "owner": owner} {
		if value != "" {
			query.Set(name, value)
		}
	}
	return "/compare?" + query.Encode()
}

// compareView is the comparison for the templates.
type compareView struct {
	Count, Wanted    int
	Namespace, Owner string
	Why              string
	// Slower says which stage of the newer starts takes longer than before.
	Slower  string
	Counts  []choice
	All     string // the address without an owner
	Owners  []ownerStat
	Stages  []stageStat
	Picture picture
}

// choice is another number of Pods, with its address.
type choice struct {
	Count   int
	Link    string
	Current bool
}

// counts are the numbers of Pods that the page offers.
var counts = []int{20, 100, 1000}

// comparePage shows how long each stage takes: quantiles over the last Pods, what changed between the older and the newer half of
// them, and which owners' Pods take how long.
func (h *hub) comparePage(ctx context.Context, c comparison) (*document, error) {
	page := &document{Title: "Compare", Nav: "compare", pause: slowPause}
	data := compareView{Wanted: c.count, Namespace: c.namespace, Owner: c.owner, All: c.link(c.count, "")}
	for _, count := range counts {
		data.Counts = append(data.Counts, choice{count, c.link(count, c.owner), count == c.count})
	}
	var records []timeline.Record
	if h.records == nil {
		data.Why = "No running berth was found here, so there are no records of stages."
	} else {
		all, err := h.records.Latest(ctx, explain.KindPod, maxCompared)
		if err != nil {
			return nil, err
		}
		records = h.chosen(all, c)
		if len(records) == 0 {
			data.Why = "No such Pod has become ready yet."
		}
	}
	data.Count, data.Stages, data.Owners = len(records), compareStages(records), h.compareOwners(records, c)
	data.Slower = slowerText(data.Stages)
	var err error
	if data.Picture, err = newPicture(medianChart(data.Stages), "median"); err != nil {
		return nil, err
	}
	page.Blocks = []block{{ID: "compare", HTML: fragmentHTML("compare", data)}}
	return page, nil
}

// chosen returns the records that are compared, those that became ready last first. all has those that changed last first, as by a
// deletion.
func (h *hub) chosen(all []timeline.Record, c comparison) []timeline.Record {
	var records []timeline.Record
	for _, record := range all {
		switch {
		case c.namespace != "" && record.Ref.Namespace != c.namespace, readyAt(record) == nil:
		case c.owner != "" && h.ownerOf(record.Ref) != c.owner:
		default:
			records = append(records, record)
		}
	}
	slices.SortStableFunc(records, func(a, b timeline.Record) int { return readyAt(b).Start.Compare(readyAt(a).Start) })
	return records[:min(len(records), c.count)]
}

// ownerOf names what a Pod belongs to, as its Deployment; a Pod that belongs to nothing is its own. Of a deleted Pod the name of a
// ReplicaSet is left in its own name.
func (h *hub) ownerOf(ref timeline.Ref) string {
	owner := metav1.OwnerReference{Kind: explain.KindPod, Name: ref.Name}
	sets := h.informers.of[replicaSets].GetIndexer()
	pod, err := get[corev1.Pod](h.informers.of[pods].GetIndexer(), pods, ref.Namespace, ref.Name)
	if err == nil {
		if controller := metav1.GetControllerOf(pod); controller != nil {
			owner = *controller
		}
	} else if end := strings.LastIndexByte(ref.Name, '-'); end > 0 {
		if _, err := get[appsv1.ReplicaSet](sets, replicaSets, ref.Namespace, ref.Name[:end]); err == nil {
			owner = metav1.OwnerReference{Kind: explain.KindReplicaSet, Name: ref.Name[:end]}
		}
	}
	if owner.Kind == explain.KindReplicaSet {
		if set, err := get[appsv1.ReplicaSet](sets, replicaSets, ref.Namespace, owner.Name); err == nil {
			if above := metav1.GetControllerOf(set); above != nil {
				owner = *above
			}
		}
	}
	return label(timeline.Ref{Kind: owner.Kind, Namespace: ref.Namespace, Name: owner.Name})
}

// ownerStat is how long the Pods of one owner take to start.
type ownerStat struct {
	Name, Link    string
	Count         int
	P50, P95, P99 string
	// Longest is the stage with the longest median, and that.
	Longest string
	p50     float64
}

// maxOwners bounds the owners that are listed.
const maxOwners = 30

// compareOwners returns the starts by owner, those that take longest first; nothing if there is one owner alone.
func (h *hub) compareOwners(records []timeline.Record, c comparison) []ownerStat {
	of := make(map[string][]timeline.Record)
	for _, record := range records {
		owner := h.ownerOf(record.Ref)
		of[owner] = append(of[owner], record)
	}
	if len(of) < 2 {
		return nil
	}
	var stats []ownerStat
	for owner, own := range of {
		s := ownerStat{Name: owner, Link: c.link(c.count, owner), Count: len(own)}
		longest := 0.0
		for _, stage := range compareStages(own) {
			switch {
			case stage.Holder == "":
				s.P50, s.P95, s.P99, s.p50 = stage.P50, stage.P95, stage.P99, stage.p50
			case stage.p50 > longest:
				longest, s.Longest = stage.p50, stage.Name+", "+stage.P50
			}
		}
		stats = append(stats, s)
	}
	slices.SortFunc(stats, func(a, b ownerStat) int { return cmp.Or(-cmp.Compare(a.p50, b.p50), strings.Compare(a.Name, b.Name)) })
	return stats[:min(len(stats), maxOwners)]
}

// slowerText says which stage became slower most; it is empty without enough starts.
func slowerText(stats []stageStat) string {
	var worst *stageStat
	known := false
	for i := range stats {
		s := &stats[i]
		known = known || s.Count >= 2*minHalf
		if s.Holder != "" && s.slower > 0 && (worst == nil || s.slower > worst.slower) {
			worst = s
		}
	}
	switch {
	case !known:
		return ""
	case worst == nil:
		return "No stage became slower from the older half of these starts to the newer one."
	}
	return fmt.Sprintf("In the newer half of these starts %s (%s) is %s than in the older one.", worst.Name, worst.Holder, worst.Change)
}

// readyAt returns the stage with which the Pod became ready first, nil if it is not ready yet.
func readyAt(record timeline.Record) *timeline.Stage {
	for i := range record.Stages {
		if record.Stages[i].Name == timeline.StageReady {
			return &record.Stages[i]
		}
	}
	return nil
}

// durations are the starts and lengths of one stage, the newest Pod first.
type durations struct{ at, took []float64 }

// compareStages returns the statistics of each stage of the Pods' first starts, in the order of the way. The records are sorted,
// the newest first.
func compareStages(records []timeline.Record) []stageStat {
	of := make(map[string]*durations)
	holders := make(map[string]string)
	for _, record := range records {
		end := readyAt(record).Start
		seen := make(map[string]float64)
		first := make(map[string]float64)
		for _, stage := range record.Stages {
			if !stage.Done() || stage.Start.After(end) {
				continue
			}
			ms := float64(stage.End.Sub(stage.Start)) / float64(time.Millisecond)
			if before, ok := seen[stage.Name]; !ok || ms > before {
				seen[stage.Name] = ms
			}
			if _, ok := first[stage.Name]; !ok {
				first[stage.Name] = float64(stage.Start.Sub(record.Stages[0].Start)) / float64(time.Millisecond)
			}
			holders[stage.Name] = waterfall.Holder(stage.Name, stage.Owner)
		}
		seen["Ready"], first["Ready"] = float64(end.Sub(record.Stages[0].Start))/float64(time.Millisecond), 0
		for name, ms := range seen {
			if of[name] == nil {
				of[name] = &durations{}
			}
			of[name].took = append(of[name].took, ms)
			of[name].at = append(of[name].at, first[name])
		}
	}
	var stats []stageStat
	for name, d := range of {
		s := stageStat{Name: name, Holder: holders[name], Count: len(d.took), at: quantile(d.at, 0.5), p50: quantile(d.took, 0.5), p95: quantile(d.took, 0.95)}
		if name == "Ready" {
			s.Name, s.Holder = "Whole start", ""
		} else if s.p95 == 0 {
			continue // a moment
		}
		s.Class = waterfall.Class(s.Holder)
		s.P50, s.P95, s.P99 = waterfall.Duration(s.p50), waterfall.Duration(s.p95), waterfall.Duration(quantile(d.took, 0.99))
		s.Change, s.Faster, s.slower = change(d.took)
		stats = append(stats, s)
	}
	slices.SortFunc(stats, func(a, b stageStat) int {
		return cmp.Or(cmp.Compare(a.at, b.at), -cmp.Compare(a.p50, b.p50), strings.Compare(a.Name, b.Name))
	})
	return stats
}

// minChange is the least difference of medians that is shown, as a part of the older one and in milliseconds; minHalf how many
// Pods each half needs.
const (
	minChange   = 0.2
	minChangeMs = 5
	minHalf     = 5
)

// change compares the medians of the newer and the older half. difference is 0 if it is too small to be shown.
func change(took []float64) (text, class string, difference float64) {
	half := len(took) / 2
	if half < minHalf {
		return "", "", 0
	}
	newer, older := quantile(took[:half], 0.5), quantile(took[half:], 0.5)
	switch difference := newer - older; {
	case math.Abs(difference) < minChangeMs || math.Abs(difference) < minChange*older:
		return "", "", 0
	case difference > 0:
		return "slower by " + waterfall.Duration(difference), "slower", difference
	default:
		return "faster by " + waterfall.Duration(-difference), "faster", difference
	}
}

// quantile returns the q-quantile of the values: the least that is not exceeded by this part of them.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

// medianChart draws a start whose stages begin and last as the medians do.
func medianChart(stats []stageStat) waterfall.Chart {
	chart := waterfall.Chart{Title: "The median start of a Pod"}
	for _, s := range stats {
		if s.Holder != "" {
			chart.Rows = append(chart.Rows, waterfall.Row{Label: s.Name, Holder: s.Holder, At: s.at, Took: s.p50})
		}
	}
	return chart
}
