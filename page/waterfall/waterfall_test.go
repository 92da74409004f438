package waterfall_test

import (
	"encoding/xml"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/page/waterfall"
	"github.com/berth-dev/berth/timeline"
)

// start is the first moment of the charts.
var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }

func record() timeline.Record {
	return timeline.Record{
		Ref: timeline.Ref{Kind: "Pod", Namespace: "shop", Name: "web", UID: "a"},
		Stages: []timeline.Stage{
			{Name: timeline.StageImage, Subject: "c", Owner: "kubelet", Attempt: 2, Start: at(400)},
			{Name: timeline.StageAccepted, Owner: "api", Attempt: 1, Start: at(0), End: at(0)},
			{Name: timeline.StageScheduled, Owner: "api", Attempt: 1, Start: at(0), End: at(200), WaitMs: 150},
			{Name: timeline.StageImage, Subject: "c", Owner: "kubelet", Attempt: 1, Start: at(200), End: at(300), Error: "no such image"},
		},
	}
}

// chartOf returns the chart of an explanation of the record's object at that time.
func chartOf(name string, record timeline.Record, now time.Time) waterfall.Chart {
	e := &explain.Explanation{Object: record.Ref}
	e.Object.Namespace, e.Object.Name = "", name
	stages := slices.Clone(record.Stages)
	slices.SortStableFunc(stages, func(a, b timeline.Stage) int { return a.Start.Compare(b.Start) })
	for _, stage := range stages {
		end := stage.End
		if !stage.Done() {
			end = now
		}
		e.Stages = append(e.Stages, explain.Stage{Stage: stage, OffsetMs: millis(stage.Start.Sub(start)), DurationMs: millis(end.Sub(stage.Start))})
	}
	return waterfall.Of(e)
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func draw(t *testing.T, chart waterfall.Chart, size waterfall.Size) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, chart.SVG(&b, size))
	decoder := xml.NewDecoder(strings.NewReader(b.String()))
	for {
		_, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return b.String()
		}
		require.NoError(t, err, "the picture is no XML:\n%s", b.String())
	}
}

func TestAChartShowsOrderWaitsAndFailures(t *testing.T) {
	chart := chartOf("Pod shop/web", record(), at(1000))
	var names []string
	for _, row := range chart.Rows {
		names = append(names, row.Name()+" "+row.State())
	}
	require.Equal(t, []string{"Accepted done", "Scheduled done", "Image c failed", "Image c (attempt 2) in progress"}, names)
	require.Equal(t, "Stages: 4, in 1.00 s. The longest is Image c (attempt 2) with 600 ms. Image c (attempt 2) goes on since 600 ms.", chart.Text())
	for _, size := range []waterfall.Size{waterfall.Wide("a"), waterfall.Narrow("a"), {ID: "b", Width: 960, Standalone: true}} {
		svg := draw(t, chart, size)
		require.Contains(t, svg, "no such image")
		require.Contains(t, svg, `fill="url(#`+size.ID+`sched)"`, "the wait of the scheduler is hatched")
		require.Contains(t, svg, `fill="url(#`+size.ID+`runtime)"`, "what goes on is hatched")
		require.Contains(t, svg, `class="failed"`)
		require.Contains(t, svg, `role="img"`)
		require.Equal(t, size.Standalone, strings.Contains(svg, "<style>"))
		require.NotContains(t, svg, "NaN")
	}
}

func TestNamesOfOthersStayText(t *testing.T) {
	hostile := "</title><script>alert(1)</script>\x1b[31m\x00\xff\"'&"
	r := record()
	r.Stages[3].Error, r.Stages[3].Subject, r.Stages[2].Owner = hostile, hostile, hostile
	chart := chartOf(hostile, r, at(1000))
	chart.Segments = []explain.Segment{{Name: hostile, Owner: hostile, Ms: 5}}
	for _, size := range []waterfall.Size{waterfall.Wide("a"), waterfall.Narrow("a"), {ID: "b", Width: 960, Standalone: true}} {
		require.NotContains(t, draw(t, chart, size), "<script>")
	}
}

func TestAChartIsBounded(t *testing.T) {
	r := timeline.Record{Ref: record().Ref}
	for i := range 200 {
		r.Stages = append(r.Stages, timeline.Stage{Name: timeline.StageStart, Subject: "c", Attempt: i + 1, Start: at(i), End: at(i + 1)})
	}
	chart := chartOf("x", r, at(1000))
	require.Equal(t, 140, chart.Omitted)
	require.Equal(t, "StartContainer c (attempt 200)", chart.Rows[len(chart.Rows)-1].Name(), "the newest stay")
	require.Contains(t, draw(t, chart, waterfall.Wide("a")), "… 140 more stages")
	require.Contains(t, draw(t, waterfall.Chart{Title: "empty"}, waterfall.Wide("a")), "No stage is recorded.")
}

func TestTheAxisHasRoundNumbers(t *testing.T) {
	for end, labels := range map[int][]string{900: {">200 ms<", ">800 ms<"}, 3_000_000: {">10 min<", ">40 min<"}, 50_000_000: {">5 h<", ">10 h<"}} {
		svg := draw(t, chartOf("x", record(), at(end)), waterfall.Wide("a"))
		for _, label := range labels {
			require.Contains(t, svg, label)
		}
	}
}

func TestDurationsForPeople(t *testing.T) {
	for ms, want := range map[float64]string{0: "0 ms", 0.5: "0.5 ms", 12.6: "13 ms", 1234: "1.23 s", 125_000: "2m5s", 3_700_000 * 3: "3h5m0s"} {
		require.Equal(t, want, waterfall.Duration(ms))
	}
}

func TestTheChartOfAnExplanationNamesOtherObjects(t *testing.T) {
	chart := waterfall.Of(&explain.Explanation{
		Object: record().Ref,
		Stages: []explain.Stage{
			{Stage: timeline.Stage{Name: timeline.StageBound, Attempt: 1, Start: at(0), End: at(1)}, Object: "PersistentVolumeClaim/data", DurationMs: 1},
			{Stage: timeline.Stage{Name: timeline.StageVolume, Subject: "d", Attempt: 1, Start: at(0), Cause: &timeline.Ref{Kind: "PersistentVolumeClaim", Name: "data"}},
				Object: "Pod/web", DurationMs: 5},
		},
		TimeBreakdown: &explain.TimeBreakdown{Segments: []explain.Segment{{Name: "Image c", Owner: "kubelet", Ms: 4}}},
	})
	require.Equal(t, "Bound of pvc data", chart.Rows[0].Name())
	require.Equal(t, "for pvc data", chart.Rows[1].Note)
	require.Contains(t, draw(t, chart, waterfall.Wide("a")), "Where 4.0 ms went")
}
