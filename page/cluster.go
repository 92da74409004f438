package page

import (
	"cmp"
	"context"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/page/waterfall"
	"github.com/berth-dev/berth/timeline"
)

// nodeView is a Node for the templates.
type nodeView struct {
	objectView
	Version, OS, Link string
	Pods              string
	CPU, Memory       string
	// CPUChart and MemoryChart are empty until the usage is known.
	CPUChart, MemoryChart template.HTML
	Pressures, Address    []string
}

// clusterPage shows the nodes with what they use, and how the cluster started.
func (h *hub) clusterPage(ctx context.Context, now time.Time) (*document, error) {
	h.usage.want(now)
	var views []nodeView
	for _, found := range h.informers.of[nodes].GetIndexer().List() {
		node := found.(*corev1.Node)
		explanation, err := h.explain(ctx, explain.KindNode, "", node.Name)
		if err != nil {
			return nil, err
		}
		v, err := h.newNodeView(node, explanation, now)
		if err != nil {
			return nil, err
		}
		views = append(views, v)
	}
	slices.SortFunc(views, func(a, b nodeView) int { return strings.Compare(a.Object.Name, b.Object.Name) })
	start, err := h.startPicture(ctx, now)
	if err != nil {
		return nil, err
	}
	var unseen []string
	if why := h.usage.unknown(); why != "" {
		unseen = append(unseen, why)
	}
	return &document{Title: "Cluster", Nav: "cluster", pause: slowPause, again: usagePeriod, Blocks: []block{
		{ID: "nodes", HTML: fragmentHTML("nodes", views) + fragmentHTML("unseen", unseen)},
		{ID: "start", HTML: fragmentHTML("start", start)},
	}}, nil
}

// newNodeView adds up what the Pods of the node request.
func (h *hub) newNodeView(node *corev1.Node, explanation *explain.Explanation, now time.Time) (nodeView, error) {
	v := nodeView{
		objectView: newRowView(explanation, "n-"+string(node.UID), now), Link: link(explain.KindNode, "", node.Name),
		Version: node.Status.NodeInfo.KubeletVersion, OS: node.Status.NodeInfo.OSImage,
	}
	var cpu, memory resource.Quantity
	count := 0
	h.eachPod("", func(pod *corev1.Pod) {
		if pod.Spec.NodeName != node.Name || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			return
		}
		count++
		for _, container := range pod.Spec.Containers {
			cpu.Add(*container.Resources.Requests.Cpu())
			memory.Add(*container.Resources.Requests.Memory())
		}
	})
	allocatable := node.Status.Allocatable
	v.Pods = fmt.Sprintf("%d of %s", count, allocatable.Pods())
	v.CPU = fmt.Sprintf("%s requested of %s", &cpu, allocatable.Cpu())
	v.Memory = fmt.Sprintf("%s requested of %s", mebibytes(memory), mebibytes(*allocatable.Memory()))
	for _, condition := range node.Status.Conditions {
		if condition.Type != corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			v.Pressures = append(v.Pressures, string(condition.Type)+": "+condition.Message)
		}
	}
	for _, address := range node.Status.Addresses {
		v.Address = append(v.Address, address.Address)
	}
	var err error
	v.CPUChart, v.MemoryChart, err = h.usage.charts(node.Name, "u"+string(node.UID), allocatable.Cpu().AsApproximateFloat64(),
		allocatable.Memory().AsApproximateFloat64())
	return v, err
}

func mebibytes(q resource.Quantity) string { return fmt.Sprintf("%d MiB", q.Value()>>20) }

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
	at, p50, p95                  float64
}

// comparePage shows how long each stage takes: quantiles over the last Pods, and what changed between the older and the newer
// half of them.
func (h *hub) comparePage(ctx context.Context, count int, namespace string) (*document, error) {
	page := &document{Title: "Compare", Nav: "compare", pause: slowPause}
	data := struct {
		Count, Wanted int
		Namespace     string
		Why           string
		Stages        []stageStat
		Picture       picture
	}{Wanted: count, Namespace: namespace}
	var records []timeline.Record
	if h.records == nil {
		data.Why = "No running berth was found here, so there are no records of stages."
	} else {
		all, err := h.records.Latest(ctx, explain.KindPod, maxCompared)
		if err != nil {
			return nil, err
		}
		for _, record := range all {
			if (namespace == "" || record.Ref.Namespace == namespace) && readyAt(record) != nil && len(records) < count {
				records = append(records, record)
			}
		}
		if len(records) == 0 {
			data.Why = "No Pod has become ready yet."
		}
	}
	data.Count, data.Stages = len(records), compareStages(records)
	var err error
	if data.Picture, err = newPicture(medianChart(data.Stages), "median"); err != nil {
		return nil, err
	}
	page.Blocks = []block{{ID: "compare", HTML: fragmentHTML("compare", data)}}
	return page, nil
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
		s.Change, s.Faster = change(d.took)
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

// change compares the medians of the newer and the older half.
func change(took []float64) (text, class string) {
	half := len(took) / 2
	if half < minHalf {
		return "", ""
	}
	newer, older := quantile(took[:half], 0.5), quantile(took[half:], 0.5)
	switch difference := newer - older; {
	case math.Abs(difference) < minChangeMs || math.Abs(difference) < minChange*older:
		return "", ""
	case difference > 0:
		return "slower by " + waterfall.Duration(difference), "slower"
	default:
		return "faster by " + waterfall.Duration(-difference), "faster"
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
