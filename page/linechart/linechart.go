package linechart

import (
	_ "embed" // the template and the style
	"fmt"
	"html/template"
	"math"
	"strings"
	"time"
)

//go:embed svg.tmpl
var svgSource string

// Style is the style sheet of the pictures.
//
//go:embed linechart.css
var Style string

var drawing = template.Must(template.New("linechart").Parse(svgSource))

// Point is one value.
type Point struct {
	At    time.Time
	Value float64
}

// Chart is a measure over time.
type Chart struct {
	// ID begins every id in the picture. It consists of letters and digits.
	ID string
	// Title says what is measured.
	Title string
	// Points are in the order of time.
	Points []Point
	// Limit is the value that it cannot exceed, 0 if there is none.
	Limit float64
	// Unit is the value that Format prints as 1: the axis ends at a round number of them. Zero means 1.
	Unit float64
	// Format prints a value.
	Format func(value float64) string
}

// The measures of the picture. Its width and height are stretched to its place on the page; texts are beside it and stay as they are.
const (
	width, height = 320.0, 80.0
	// headroom is how much higher than its highest value the picture is at least.
	headroom = 1.05
)

// scene is what the template draws.
type scene struct {
	ID, Title, Text             string
	Width, Height, Middle       float64
	Line, Area, Top, Begin, Now string
	HasLimit                    bool
}

// SVG returns the picture, nothing without points.
func (c Chart) SVG() (template.HTML, error) {
	if len(c.Points) == 0 {
		return "", nil
	}
	var b strings.Builder
	if err := drawing.Execute(&b, c.scene()); err != nil {
		return "", fmt.Errorf("draw %s: %w", c.Title, err)
	}
	return template.HTML(b.String()), nil //nolint:gosec // the template has escaped every text
}

func (c Chart) scene() scene {
	first, last := c.Points[0], c.Points[len(c.Points)-1]
	_, highest := c.bounds()
	top := c.roundUp(highest * headroom)
	hasLimit := c.Limit > 0 && top >= c.Limit
	if hasLimit {
		top = c.Limit
	}
	length := math.Max(last.At.Sub(first.At).Seconds(), 1)
	y := func(value float64) float64 { return round(height - math.Min(value/top, 1)*height) }
	s := scene{
		ID: c.ID, Title: c.Title, Text: c.Text(), Width: width, Height: height, Middle: height / 2, HasLimit: hasLimit, Top: c.Format(top),
		Now: c.Format(last.Value),
	}
	if since := last.At.Sub(first.At); since >= time.Second {
		s.Begin = ago(since)
	}
	var line strings.Builder
	for i, point := range c.Points {
		command := "L"
		if i == 0 {
			command = "M"
		}
		fmt.Fprintf(&line, "%s%g %g", command, round(point.At.Sub(first.At).Seconds()/length*width), y(point.Value))
	}
	if len(c.Points) == 1 {
		fmt.Fprintf(&line, "L%g %g", width, y(first.Value))
	}
	s.Line = line.String()
	s.Area = fmt.Sprintf("%sL%g %gL0 %gZ", s.Line, width, height, height)
	return s
}

// roundUp returns the least round number of units that is not below the value.
func (c Chart) roundUp(value float64) float64 {
	unit := c.Unit
	if unit <= 0 {
		unit = 1
	}
	if value <= 0 {
		return unit
	}
	power := math.Pow(10, math.Floor(math.Log10(value/unit)))
	for _, digit := range []float64{1, 1.5, 2, 3, 4, 5, 6, 8} {
		if digit*power*unit >= value {
			return digit * power * unit
		}
	}
	return 10 * power * unit
}

// ago says how long ago the chart begins.
func ago(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%.0f s ago", d.Seconds())
	case d < 90*time.Minute:
		return fmt.Sprintf("%.0f min ago", d.Minutes())
	}
	return fmt.Sprintf("%.1f h ago", d.Hours())
}

// Text returns the picture in one sentence.
func (c Chart) Text() string {
	if len(c.Points) == 0 {
		return c.Title + ": nothing is measured yet."
	}
	lowest, highest := c.bounds()
	last := c.Points[len(c.Points)-1]
	text := fmt.Sprintf("%s: now %s", c.Title, c.Format(last.Value))
	if c.Limit > 0 {
		text += " of " + c.Format(c.Limit)
	}
	if since := last.At.Sub(c.Points[0].At).Round(time.Second); since > 0 {
		text += fmt.Sprintf(", between %s and %s in the last %s", c.Format(lowest), c.Format(highest), since)
	}
	return text + "."
}

// bounds returns the lowest and the highest value.
func (c Chart) bounds() (lowest, highest float64) {
	lowest = math.Inf(1)
	for _, point := range c.Points {
		lowest, highest = math.Min(lowest, point.Value), math.Max(highest, point.Value)
	}
	return lowest, highest
}

func round(v float64) float64 { return math.Round(v*10) / 10 }
