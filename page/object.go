package page

import (
	"fmt"
	"html/template"
	"regexp"
	"time"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/page/waterfall"
	"github.com/berth-dev/berth/timeline"
)

// moment is a time for people and for scripts.
type moment struct {
	Stamp, Clock, Age string
	Millis            int64
}

// newMoment returns the moment, nil if it is unknown.
func newMoment(at, now time.Time) *moment {
	if at.IsZero() {
		return nil
	}
	layout := time.TimeOnly
	if now.Sub(at) > 12*time.Hour {
		layout = time.DateTime
	}
	return &moment{Stamp: at.UTC().Format(time.RFC3339), Clock: at.Local().Format(layout), Age: age(now.Sub(at)), Millis: at.UnixMilli()}
}

// age prints how long something has lasted, as the script does.
func age(d time.Duration) string {
	seconds := int(max(d, 0) / time.Second)
	switch {
	case seconds < 60:
		return fmt.Sprintf("%d s", seconds)
	case seconds < 3600:
		return fmt.Sprintf("%d min %d s", seconds/60, seconds%60)
	case seconds < 48*3600:
		return fmt.Sprintf("%d h %d min", seconds/3600, seconds%3600/60)
	}
	return fmt.Sprintf("%d days", seconds/86400)
}

// picture is a chart in both sizes, and its rows for the table.
type picture struct {
	Wide, Narrow template.HTML
	Rows         []waterfall.Row
}

// newPicture draws the chart. The id begins the ids of its elements.
func newPicture(chart waterfall.Chart, id string) (picture, error) {
	if len(chart.Rows) == 0 {
		return picture{}, nil
	}
	wide, err := chart.Inline(waterfall.Wide(id))
	if err != nil {
		return picture{}, err
	}
	narrow, err := chart.Inline(waterfall.Narrow(id))
	return picture{Wide: wide, Narrow: narrow, Rows: chart.Rows}, err
}

// objectView is an explanation for the templates.
type objectView struct {
	*explain.Explanation
	// ID identifies the object within its page.
	ID, Kind, Label   string
	Since, NextChange *moment
	Picture           picture
	// Link is the path of the object's own page.
	Link string
	// Sentence is the verdict without the elapsed time at its beginning, which the page shows beside it and counts.
	Sentence string
}

// newObjectView returns the view with its picture. The id begins with a letter.
func newObjectView(e *explain.Explanation, id string, now time.Time) (objectView, error) {
	v := newRowView(e, id, now)
	var err error
	v.Picture, err = newPicture(waterfall.Of(e), id)
	return v, err
}

// elapsed is how a verdict begins that says for how long its object has waited.
var elapsed = regexp.MustCompile(`^(waiting|deleting for|not ready for) ([0-9]+(\.[0-9]+)? s|[0-9hms]+): `)

// newRowView returns the view without its picture.
func newRowView(e *explain.Explanation, id string, now time.Time) objectView {
	v := objectView{Explanation: e, ID: id, Kind: e.Object.Kind, Label: label(e.Object), Link: link(e.Object.Kind, e.Object.Namespace, e.Object.Name), Since: newMoment(e.Since, now), Sentence: e.Verdict}
	if v.Since != nil {
		v.Sentence = elapsed.ReplaceAllString(e.Verdict, "")
	}
	if e.Stuck() {
		v.NextChange = newMoment(e.NextChangeAt, now)
	}
	return v
}

// label names an object in one line.
func label(ref timeline.Ref) string {
	word := explain.ShortKind(ref.Kind)
	if ref.Namespace != "" {
		return word + " " + ref.Namespace + "/" + ref.Name
	}
	return word + " " + ref.Name
}
