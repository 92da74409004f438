package waterfall

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/timeline"
)

// Row is one bar of a Chart.
type Row struct {
	// Label is the stage, Detail the part of the object that it is about; Detail may be empty.
	Label, Detail string
	// Holder is who works on it; the colour follows from it.
	Holder string
	// At and Took are in milliseconds; At counts from the chart's begin. WaitMs is the part of Took, at its beginning, that
	// the stage waited in a queue.
	At, Took, WaitMs float64
	// Open is set while the stage goes on, Failed if it ended with an error.
	Open, Failed bool
	// Note is a further fact: the error, or what it waits for.
	Note string
}

// Chart is a picture of stages to scale.
type Chart struct {
	// Title names the picture for those who do not see it.
	Title string
	Rows  []Row
	// Segments are shown as one bar below the rows: where the time went. They may be empty.
	Segments []explain.Segment
	// Omitted counts rows that are left out in the middle.
	Omitted int
}

// maxRows bounds a picture; the first rows, which show the start, and the newest are kept.
const (
	maxRows   = 60
	firstRows = 30
)

// Of returns the chart of an explanation: the stages up to the moment when the object was ready, and those that repeat
// afterwards only as far as the picture has place.
func Of(e *explain.Explanation) Chart {
	chart := Chart{Title: "Stages of " + explain.Title(e)}
	for _, stage := range e.Stages {
		chart.Rows = append(chart.Rows, rowOf(stage, e.Object))
	}
	if e.TimeBreakdown != nil {
		chart.Segments = e.TimeBreakdown.Segments
	}
	return chart.bounded()
}

// rowOf returns the row of a stage. A stage of another object than the chart's says of which.
func rowOf(stage explain.Stage, of timeline.Ref) Row {
	row := Row{
		Label: stage.Name, Detail: stage.Subject, Holder: Holder(stage.Name, stage.Owner), At: stage.OffsetMs, Took: stage.DurationMs,
		WaitMs: min(stage.WaitMs, stage.DurationMs), Open: !stage.Done(), Failed: stage.Error != "", Note: stage.Error,
	}
	if kind, name, ok := strings.Cut(stage.Object, "/"); ok && (kind != of.Kind || name != of.Name) {
		row.Detail = strings.TrimSpace(row.Detail + " of " + explain.ShortKind(kind) + " " + name)
	}
	if stage.Attempt > 1 {
		row.Detail = strings.TrimSpace(row.Detail + fmt.Sprintf(" (attempt %d)", stage.Attempt))
	}
	if row.Note == "" && stage.Cause != nil && row.Open {
		row.Note = "for " + explain.ShortKind(stage.Cause.Kind) + " " + stage.Cause.Name
	}
	return row
}

func (c Chart) bounded() Chart {
	if extra := len(c.Rows) - maxRows; extra > 0 {
		c.Omitted = extra
		c.Rows = slices.Delete(slices.Clone(c.Rows), firstRows, firstRows+extra)
	}
	return c
}

// total returns the end of the last row.
func (c Chart) total() float64 {
	total := 0.0
	for _, row := range c.Rows {
		total = max(total, row.At+row.Took)
	}
	return total
}

// holders returns who worked on the rows, in the order of their appearance.
func (c Chart) holders() []string {
	var holders []string
	for _, row := range c.Rows {
		if row.Holder != "" && !slices.Contains(holders, row.Holder) {
			holders = append(holders, row.Holder)
		}
	}
	return holders
}

// Text returns the picture in words: one sentence, for readers who do not see it. The rows themselves are for a table.
func (c Chart) Text() string {
	if len(c.Rows) == 0 {
		return "No stage is recorded."
	}
	longest := slices.MaxFunc(c.Rows, func(a, b Row) int { return cmp.Compare(a.Took, b.Took) })
	text := fmt.Sprintf("Stages: %d, in %s. The longest is %s with %s.", len(c.Rows)+c.Omitted, Duration(c.total()), longest.Name(),
		Duration(longest.Took))
	for _, row := range c.Rows {
		if row.Open {
			text += fmt.Sprintf(" %s goes on since %s.", row.Name(), Duration(row.Took))
		}
	}
	return text
}

// Name is the row's label with its detail.
func (r Row) Name() string { return strings.TrimSpace(r.Label + " " + r.Detail) }

// State is the row's state in one word.
func (r Row) State() string {
	switch {
	case r.Failed:
		return "failed"
	case r.Open:
		return "in progress"
	}
	return "done"
}

// Start and Length are At and Took for people.
func (r Row) Start() string { return Duration(r.At) }

// Length is how long the row took, for people; it is empty for a moment.
func (r Row) Length() string {
	if r.Took == 0 {
		return ""
	}
	return Duration(r.Took)
}

// Duration prints milliseconds for people, with two or three digits.
func Duration(ms float64) string {
	d := time.Duration(ms * float64(time.Millisecond))
	switch {
	case ms < 0.05:
		return "0 ms"
	case ms < 10:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 1000:
		return fmt.Sprintf("%.0f ms", ms)
	case ms < 100_000:
		return fmt.Sprintf("%.2f s", ms/1000)
	case d < 2*time.Hour:
		return d.Truncate(time.Second).String()
	}
	return d.Truncate(time.Minute).String()
}
