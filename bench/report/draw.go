package report

import (
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-dev/berth/bench/harness"
)

const (
	width     = 820.0
	labels    = 300.0 // space for the names of variants, left of the bars
	values    = 120.0 // space for the numbers, right of the bars
	barStep   = 24.0
	barHeight = 15.0
	style     = `<style>
text { font: 13px sans-serif; fill: #222 } .title { font-weight: bold } .small { font-size: 11px; fill: #555 }
.line { stroke: #222; stroke-width: 1; fill: none } .grid { stroke: #ddd; stroke-width: 1 } .back { fill: #fff }
.curve { stroke-width: 2; fill: none }
.f0 { fill: #0b63ce } .f1 { fill: #9aa3ad } .f2 { fill: #c08a1e } .f3 { fill: #a2588b } .f4 { fill: #4f9a4f }
.s0 { stroke: #0b63ce } .s1 { stroke: #9aa3ad } .s2 { stroke: #c08a1e } .s3 { stroke: #a2588b } .s4 { stroke: #4f9a4f }
@media (prefers-color-scheme: dark) {
text { fill: #e6e6e6 } .small { fill: #a8a8a8 } .line { stroke: #e6e6e6 } .grid { stroke: #3a3f46 } .back { fill: #0d1117 }
.f0 { fill: #4c9bff } .f1 { fill: #6d7681 } .f2 { fill: #d9a441 } .f3 { fill: #c583b0 } .f4 { fill: #74bd74 }
.s0 { stroke: #4c9bff } .s1 { stroke: #6d7681 } .s2 { stroke: #d9a441 } .s3 { stroke: #c583b0 } .s4 { stroke: #74bd74 }
}
</style>`
)

// color is the number of a variant's color among the classes of style; ours is the first.
func color(i int) int { return i % 5 }

// svg collects the elements of a drawing.
type svg struct {
	body   strings.Builder
	height float64
}

func (s *svg) add(format string, args ...any) {
	fmt.Fprintf(&s.body, format+"\n", args...)
}

func (s *svg) text(x, y float64, class, anchor, text string) {
	s.add(`<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">%s</text>`, x, y, class, anchor, html.EscapeString(text))
}

func (s *svg) save(path string) error {
	text := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f">`,
		width, s.height, width, s.height) + "\n" + style + "\n" +
		fmt.Sprintf(`<rect class="back" width="%.0f" height="%.0f"/>`, width, s.height) + "\n" + s.body.String() + "</svg>\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return fmt.Errorf("draw: %w", err)
	}
	return nil
}

// draw writes the plots of a benchmark into dir and returns their names.
func draw(d *harness.Data, dir string) ([]string, error) {
	var drawings []*svg
	if d.Axis != "" {
		drawings = append(drawings, lines(d))
	}
	drawings = append(drawings, bars(d))
	if distributions := distributions(d); distributions != nil {
		drawings = append(drawings, distributions)
	}
	var names []string
	for i, drawing := range drawings {
		name := d.Name + ".svg"
		if i > 0 {
			name = fmt.Sprintf("%s-%d.svg", d.Name, i+1)
		}
		if err := drawing.save(filepath.Join(dir, name)); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

// bar is a bar with its name.
type bar struct {
	name  string
	color int
	value harness.Summary
}

// bars draws the first metric of each case for all its variants; of a case that compares nothing, all metrics. A bar
// goes to the median, a line from the lowest to the highest.
func bars(d *harness.Data) *svg {
	s := &svg{height: 10}
	for i := range d.Cases {
		c := &d.Cases[i]
		switch {
		case len(c.Samples) == 0:
		case len(c.Variants) == 1:
			s.metrics(c)
		default:
			metric := c.Metrics[0]
			var rows []bar
			for j, v := range c.Variants {
				rows = append(rows, bar{v, color(j), harness.Summarize(c.Values(v, metric.Name))})
			}
			s.group(c.Name+": "+metric.Name+unit(metric), metric.Better, rows)
		}
	}
	return s
}

// metrics draws those of one unit together.
func (s *svg) metrics(c *harness.CaseData) {
	for i, first := range c.Metrics {
		sameUnit := func(m harness.Metric) bool { return m.Unit == first.Unit }
		if slices.ContainsFunc(c.Metrics[:i], sameUnit) {
			continue
		}
		var rows []bar
		for _, m := range c.Metrics[i:] {
			if sameUnit(m) {
				rows = append(rows, bar{m.Name, color(0), harness.Summarize(c.Values(c.Variants[0], m.Name))})
			}
		}
		s.group(c.Name+unit(first), first.Better, rows)
	}
}

// unit is what follows a metric's name; some only count.
func unit(m harness.Metric) string {
	if m.Unit == "" {
		return ""
	}
	return ", " + m.Unit
}

// group draws rows to one scale.
func (s *svg) group(title string, better harness.Direction, rows []bar) {
	s.height += 22
	s.text(10, s.height-6, "title", "start", title)
	s.text(width-10, s.height-6, "small", "end", string(better)+" is better")
	top := 0.0
	for _, r := range rows {
		if r.value.Count > 0 {
			top = max(top, r.value.Max)
		}
	}
	for _, r := range rows {
		s.bar(r, top)
	}
	s.height += 12
}

func (s *svg) bar(r bar, top float64) {
	y := s.height + (barStep-barHeight)/2
	s.height += barStep
	s.text(labels-8, y+12, "", "end", r.name)
	if r.value.Count == 0 {
		s.text(labels, y+12, "small", "start", "not measured")
		return
	}
	scale := 0.0
	if top > 0 {
		scale = (width - labels - values) / top
	}
	low, high, middle := labels+r.value.Min*scale, labels+r.value.Max*scale, y+barHeight/2
	s.add(`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" class="f%d"/>`,
		labels, y, math.Max(1, r.value.Median*scale), barHeight, r.color)
	if r.value.Count > 1 {
		s.add(`<path class="line" d="M%.1f %.1fH%.1f M%.1f %.1fv6 M%.1f %.1fv6"/>`, low, middle, high, low, middle-3, high, middle-3)
	}
	s.text(high+8, y+12, "", "start", number(r.value.Median))
}

// lines draws the first metric of all cases against their scale.
func lines(d *harness.Data) *svg {
	const left, right, top, bottom = 80.0, 250.0, 40.0, 320.0
	s := &svg{height: bottom + 50}
	metric, variants := d.Cases[0].Metrics[0], d.Cases[0].Variants
	x, y := axis{from: left, to: width - right}, axis{from: bottom, to: top}
	for i := range d.Cases {
		c := &d.Cases[i]
		for _, v := range c.Variants {
			if s := harness.Summarize(c.Values(v, metric.Name)); s.Count > 0 {
				x.include(c.Scale)
				y.include(s.Min)
				y.include(s.Max)
			}
		}
	}
	s.text(10, 22, "title", "start", metric.Name+unit(metric)+", against "+d.Axis)
	s.text(width-10, 22, "small", "end", string(metric.Better)+" is better")
	for _, value := range y.marks() {
		s.add(`<path class="grid" d="M%.1f %.1fH%.1f"/>`, left, y.at(value), width-right)
		s.text(left-8, y.at(value)+4, "small", "end", mark(value))
	}
	for i := range d.Cases {
		at := x.at(d.Cases[i].Scale)
		s.text(at, bottom+18, "small", "middle", mark(d.Cases[i].Scale))
	}
	s.text((left+width-right)/2, bottom+38, "small", "middle", d.Axis)
	for i, v := range variants {
		var points []string
		end := top
		for j := range d.Cases {
			c := &d.Cases[j]
			value := harness.Summarize(c.Values(v, metric.Name))
			if value.Count == 0 {
				continue
			}
			end = y.at(value.Median)
			points = append(points, fmt.Sprintf("%.1f,%.1f", x.at(c.Scale), end))
			s.add(`<circle cx="%.1f" cy="%.1f" r="4" class="f%d"/>`, x.at(c.Scale), end, color(i))
		}
		if len(points) == 0 {
			continue
		}
		s.add(`<polyline points="%s" class="curve s%d"/>`, strings.Join(points, " "), color(i))
		s.text(width-right+10, end+4, "", "start", v)
	}
	return s
}

// distributions draws, for each case with single values, the part of them that lies below each value; nil if none has.
func distributions(d *harness.Data) *svg {
	s := &svg{height: 10}
	for i := range d.Cases {
		c := &d.Cases[i]
		var series []string
		for j := range c.Samples {
			for name := range c.Samples[j].Series {
				if !slices.Contains(series, name) {
					series = append(series, name)
				}
			}
		}
		slices.Sort(series)
		for _, name := range series {
			s.distribution(c, name)
		}
	}
	if s.height == 10 {
		return nil
	}
	return s
}

func (s *svg) distribution(c *harness.CaseData, name string) {
	const left, right, high = 60.0, 300.0, 130.0
	top, bottom := s.height+34, s.height+34+high
	s.height = bottom + 34
	x := axis{from: left, to: width - right}
	for _, v := range c.Variants {
		for _, value := range c.Series(v, name) {
			x.include(math.Max(value, 0.01))
		}
	}
	s.text(10, top-14, "title", "start", c.Name+": "+name+", ms, and the part that took no longer")
	for _, part := range []float64{0, 0.5, 1} {
		at := bottom - part*high
		s.add(`<path class="grid" d="M%.1f %.1fH%.1f"/>`, left, at, width-right)
		s.text(left-8, at+4, "small", "end", fmt.Sprintf("%.0f %%", part*100))
	}
	for _, value := range x.marks() {
		s.add(`<path class="grid" d="M%.1f %.1fV%.1f"/>`, x.at(value), top, bottom)
		s.text(x.at(value), bottom+16, "small", "middle", mark(value))
	}
	for i, v := range c.Variants {
		all := c.Series(v, name)
		if len(all) == 0 {
			continue
		}
		slices.Sort(all)
		points := make([]string, 0, 101)
		for step := range 101 {
			part := float64(step) / 100
			value := math.Max(harness.Quantile(all, part), 0.01)
			points = append(points, fmt.Sprintf("%.1f,%.1f", x.at(value), bottom-part*high))
		}
		s.add(`<polyline points="%s" class="curve s%d"/>`, strings.Join(points, " "), color(i))
		s.add(`<rect x="%.1f" y="%.1f" width="12" height="12" class="f%d"/>`, width-right+14, top+float64(i)*20, color(i))
		s.text(width-right+32, top+float64(i)*20+11, "", "start", v)
	}
}
