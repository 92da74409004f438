package waterfall

import (
	_ "embed" // the template and the style
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

//go:embed svg.tmpl
var svgSource string

// Style is the style sheet of the pictures, for pages that have them inline.
//
//go:embed waterfall.css
var Style string

// drawing is the template of the picture.
var drawing = template.Must(template.New("waterfall").Parse(svgSource))

// Size is how a Chart is drawn.
type Size struct {
	// ID begins every id in the picture, so that several fit into one document. It consists of letters and digits.
	ID string
	// Width is in pixels; a picture that is not Wide has the labels above the bars.
	Width float64
	// Standalone is set for a file of its own, which carries its style.
	Standalone bool
}

// wideFrom is the width from which labels are beside the bars.
const wideFrom = 600

// The measures of the picture in pixels. charWidth is the mean width of a character of the labels.
const (
	rowHeight, narrowRowHeight = 25.0, 42.0
	noteHeight                 = 17.0
	barHeight                  = 12.0
	axisHeight                 = 24.0
	lengthColumn               = 72.0
	charWidth                  = 6.9
	minBar                     = 2.0
)

// Wide and Narrow are the sizes that pages show, by the width of the window.
func Wide(id string) Size   { return Size{ID: id + "w", Width: 960} }
func Narrow(id string) Size { return Size{ID: id + "n", Width: 340} }

// SVG writes the picture.
func (c Chart) SVG(w io.Writer, size Size) error {
	if err := drawing.Execute(w, newScene(c, size)); err != nil {
		return fmt.Errorf("draw %s: %w", c.Title, err)
	}
	return nil
}

// Inline returns the picture for a page, in the given size.
func (c Chart) Inline(size Size) (template.HTML, error) {
	var b strings.Builder
	err := c.SVG(&b, size)
	return template.HTML(b.String()), err //nolint:gosec // the template has escaped every text
}

// scene is what the template draws. It has many fields because the template places each part of the picture.
type scene struct {
	ID, Title, Text             string
	Style                       template.CSS
	Width, Height, Top, TickY   float64
	PlotX, PlotWidth            float64
	PlotHeight                  float64
	Patterns                    []string
	Ticks                       []tick
	Bars                        []bar
	Omission                    *note
	Path                        *path
	Legend                      []legend
	wide                        bool
	total, y, labelWidth, scale float64
}

type tick struct {
	X             float64
	Label, Anchor string
}

// bar is a row with its place. It has many fields because the template needs the place of each part.
type bar struct {
	Class, Label, Detail, Length, Tip                             string
	LabelX, TextY, X, BarY, BarWidth, WaitWidth, WorkX, WorkWidth float64
	Mark, Hatched                                                 bool
	Note                                                          *note
}

type note struct {
	X, Y        float64
	Text, Class string
}

type path struct {
	Title  string
	TitleY float64
	Parts  []pathPart
}

type pathPart struct {
	Class, Tip  string
	X, Y, Width float64
	Label       *note
}

type legend struct {
	Class, Label       string
	X, Y, TextX, TextY float64
}

// newScene places everything, from the top to the bottom.
func newScene(c Chart, size Size) *scene {
	s := &scene{ID: size.ID, Title: clean(c.Title), Text: clean(c.Text()), Width: size.Width, wide: size.Width >= wideFrom, total: max(c.total(), 1)}
	if size.Standalone {
		s.Style = template.CSS(Style) //nolint:gosec // a constant
	}
	s.TickY, s.Top = 14, axisHeight
	s.PlotX, s.PlotWidth = 0, s.Width
	s.labelWidth = s.Width - lengthColumn
	if s.wide {
		s.labelWidth = math.Round(s.Width * 0.29)
		s.PlotX = s.labelWidth + 10
		s.PlotWidth = s.Width - s.PlotX - lengthColumn
	}
	s.scale = (s.PlotWidth - 12) / s.total
	s.addTicks()
	s.y = s.Top + 5
	for i, row := range c.Rows {
		if c.Omitted > 0 && i == firstRows {
			s.Omission = &note{Y: round(s.y + 15), Text: fmt.Sprintf("… %d more stages", c.Omitted)}
			s.y += rowHeight
		}
		s.addBar(row)
	}
	s.PlotHeight = round(s.y + 3 - s.Top)
	s.y += 12
	s.addPath(c)
	s.addLegend(c)
	s.Height = round(s.y)
	return s
}

// x returns the place of a moment.
func (s *scene) x(at float64) float64 { return round(s.PlotX + 6 + at*s.scale) }

func round(v float64) float64 { return math.Round(v*10) / 10 }

// addTicks adds the time axis, with round numbers.
func (s *scene) addTicks() {
	wanted := math.Max(3, math.Floor(s.PlotWidth/110))
	unit := axisUnit(s.total)
	step := unit * math.Pow(10, math.Floor(math.Log10(s.total/unit/wanted)))
	for _, factor := range []float64{1, 2, 5, 10} {
		if s.total/(step*factor) <= wanted {
			step *= factor
			break
		}
	}
	for at := 0.0; at <= s.total; at += step {
		anchor := "middle"
		if at == 0 {
			anchor = "start"
		} else if s.x(at) > s.PlotX+s.PlotWidth-30 && !s.wide {
			anchor = "end"
		}
		s.Ticks = append(s.Ticks, tick{X: s.x(at), Label: axisLabel(at, s.total), Anchor: anchor})
	}
}

// The units of time axes in milliseconds.
const (
	inSeconds = 1000.0
	inMinutes = 60 * inSeconds
	inHours   = 60 * inMinutes
)

// axisUnit returns the unit of an axis of that length.
func axisUnit(total float64) float64 {
	switch {
	case total < inSeconds:
		return 1
	case total < 3*inMinutes:
		return inSeconds
	case total < 3*inHours:
		return inMinutes
	}
	return inHours
}

// axisLabel prints a moment in the unit of the whole axis.
func axisLabel(ms, total float64) string {
	if ms == 0 {
		return "0"
	}
	unit := axisUnit(total)
	names := map[float64]string{1: " ms", inSeconds: " s", inMinutes: " min", inHours: " h"}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", ms/unit), ".0") + names[unit]
}

// addBar adds a row below the last one.
func (s *scene) addBar(row Row) {
	b := bar{Class: Class(row.Holder), Length: row.Length(), Tip: clean(row.tip()), X: s.x(row.At)}
	if row.Failed {
		b.Class = "failed"
	}
	chars := int(s.labelWidth / charWidth)
	b.Label = clip(clean(row.Label), chars)
	if rest := chars - utf8.RuneCountInString(b.Label) - 1; rest > 3 {
		b.Detail = clip(clean(row.Detail), rest)
	}
	b.TextY, b.BarY = round(s.y+14), round(s.y+4)
	height := rowHeight
	if !s.wide {
		b.BarY, height = round(s.y+21), narrowRowHeight
	}
	width := math.Max(row.Took*s.scale, minBar)
	b.Mark, b.Hatched = row.Took == 0 && !row.Open, row.Open
	b.BarWidth = round(width)
	b.WorkX, b.WorkWidth = b.X, round(width)
	if wait := row.WaitMs * s.scale; wait >= minBar {
		b.WaitWidth = round(wait)
		b.WorkX, b.WorkWidth = round(b.X+wait), round(math.Max(width-wait, minBar))
	}
	if (b.Hatched || b.WaitWidth > 0) && !slices.Contains(s.Patterns, b.Class) {
		s.Patterns = append(s.Patterns, b.Class)
	}
	s.y += height
	if row.Note != "" {
		at := 0.0
		if s.wide {
			at = s.PlotX + 6
		}
		class := "faint"
		if row.Failed {
			class = "err"
		}
		b.Note = &note{Class: class, X: at, Y: round(s.y + 9), Text: clip(clean(row.Note), int((s.Width-at)/(charWidth*0.97)))}
		s.y += noteHeight
	}
	s.Bars = append(s.Bars, b)
}

// tip is the row in one sentence, which a browser shows beside the pointer.
func (r Row) tip() string {
	text := fmt.Sprintf("%s (%s): at %s", r.Name(), r.Holder, Duration(r.At))
	if r.Took > 0 {
		text += ", took " + Duration(r.Took)
	}
	if r.WaitMs >= 1 {
		text += ", of which it waited " + Duration(r.WaitMs)
	}
	if r.Open {
		text += ", in progress"
	}
	if r.Note != "" {
		text += ": " + r.Note
	}
	return text
}

// addPath adds the bar that says where the time went.
func (s *scene) addPath(c Chart) {
	total := 0.0
	for _, segment := range c.Segments {
		total += segment.Ms
	}
	if total == 0 {
		return
	}
	s.y += 6
	s.Path = &path{Title: "Where " + Duration(total) + " went: what the start waited for", TitleY: round(s.y + 10)}
	s.y += 20
	at, scale := 0.0, s.Width/total
	for _, segment := range c.Segments {
		width := segment.Ms * scale
		part := pathPart{Class: Class(segmentHolder(segment.Name, segment.Owner)), X: round(at), Y: round(s.y),
			Width: round(math.Max(width-1, 0.5)), Tip: clean(fmt.Sprintf("%s (%s): %s", segment.Name, segment.Owner, Duration(segment.Ms)))}
		if chars := int(width/charWidth) - 1; chars >= 8 {
			part.Label = &note{X: round(at), Y: round(s.y + 29), Text: clip(clean(segment.Name), chars)}
		}
		at += width
		s.Path.Parts = append(s.Path.Parts, part)
	}
	s.y += 42
}

// segmentHolder returns the holder of a segment, whose name is a stage with its subject, or a hand-over.
func segmentHolder(name, owner string) string {
	stage, _, _ := strings.Cut(name, " ")
	return Holder(stage, owner)
}

// addLegend adds the colours and who they stand for.
func (s *scene) addLegend(c Chart) {
	s.y += 6
	x := 0.0
	for _, holder := range c.holders() {
		width := 16 + float64(utf8.RuneCountInString(holder))*charWidth + 18
		if x > 0 && x+width > s.Width {
			x, s.y = 0, s.y+18
		}
		s.Legend = append(s.Legend, legend{Class: Class(holder), Label: clean(holder), X: round(x), Y: round(s.y), TextX: round(x + 15), TextY: round(s.y + 9)})
		x += width
	}
	s.y += 18
}

// clean removes what XML does not allow from texts of others.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case r < ' ' || r >= 0x7f && r < 0xa0 || r == 0xfffe || r == 0xffff || r == utf8.RuneError:
			return '\uFFFD'
		}
		return r
	}, text)
}

func clip(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:max(width-1, 0)]) + "…"
}
