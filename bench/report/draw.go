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
	labels    = 300.0 // room for the names of variants, left of the bars
	values    = 120.0 // room for the numbers, right of the bars
	barStep   = 24.0
	barHeight = 15.0
	style     = `<style>
text { font: 13px sans-serif; fill: #222 } .title { font-weight: bold } .small { font-size: 11px; fill: #555 }
.line { stroke: #222; stroke-width: 1; fill: none } .grid { stroke: #ddd; stroke-width: 1 } .back { fill: #fff }
</style>`
)

// colors are those of the variants in their order; ours is the first.
var colors = []string{"#0b63ce", "#9aa3ad", "#c9b27c", "#b58ea8", "#8fb38f"}

func color(i int) string { return colors[i%len(colors)] }

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

// bars draws the first metric of each case: a bar to the median of each variant, a line from the lowest to the highest.
func bars(d *harness.Data) *svg {
	s := &svg{height: 10}
	for i := range d.Cases {
		c := &d.Cases[i]
		if len(c.Samples) == 0 {
			continue
		}
		metric := c.Metrics[0]
		s.height += 22
		s.text(10, s.height-6, "title", "start", c.Name+": "+metric.Name+", "+metric.Unit)
		s.text(width-10, s.height-6, "small", "end", string(metric.Better)+" is better")
		top := 0.0
		for _, v := range c.Variants {
			if value := harness.Summarize(c.Values(v, metric.Name)).Max; value > top {
				top = value
			}
		}
		for j, v := range c.Variants {
			s.bar(v, color(j), harness.Summarize(c.Values(v, metric.Name)), top)
		}
		s.height += 12
	}
	return s
}

func (s *svg) bar(name, fill string, value harness.Summary, top float64) {
	y := s.height + (barStep-barHeight)/2
	s.height += barStep
	s.text(labels-8, y+12, "", "end", name)
	if value.Count == 0 || top <= 0 {
		s.text(labels, y+12, "small", "start", "not measured")
		return
	}
	scale := (width - labels - values) / top
	middle := y + barHeight/2
	s.add(`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`,
		labels, y, math.Max(1, value.Median*scale), barHeight, fill)
	s.add(`<path class="line" d="M%.1f %.1fH%.1f M%.1f %.1fv6 M%.1f %.1fv6"/>`, labels+value.Min*scale, middle,
		labels+value.Max*scale, labels+value.Min*scale, middle-3, labels+value.Max*scale, middle-3)
	s.text(labels+value.Max*scale+8, y+12, "", "start", number(value.Median))
}

// lines draws the first metric of all cases against their scale, both axes logarithmic.
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
	s.text(10, 22, "title", "start", metric.Name+", "+metric.Unit+" against "+d.Axis)
	for power := y.low(); power <= y.high(); power++ {
		at := y.at(math.Pow(10, power))
		s.add(`<path class="grid" d="M%.1f %.1fH%.1f"/>`, left, at, width-right)
		s.text(left-8, at+4, "small", "end", number(math.Pow(10, power)))
	}
	for i := range d.Cases {
		at := x.at(d.Cases[i].Scale)
		s.text(at, bottom+18, "small", "middle", number(d.Cases[i].Scale))
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
			s.add(`<circle cx="%.1f" cy="%.1f" r="4" fill="%s"/>`, x.at(c.Scale), end, color(i))
		}
		if len(points) == 0 {
			continue
		}
		s.add(`<polyline points="%s" stroke="%s" stroke-width="2" fill="none"/>`, strings.Join(points, " "), color(i))
		s.text(width-right+10, end+4, "", "start", v)
	}
	return s
}

// axis maps values to places, by their logarithm.
type axis struct {
	from, to float64
	min, max float64
}

func (a *axis) include(value float64) {
	if value <= 0 {
		return
	}
	if a.min == 0 || value < a.min {
		a.min = value
	}
	a.max = math.Max(a.max, value)
}

// low and high are the powers of ten at which the axis begins and ends.
func (a *axis) low() float64 {
	if a.min == 0 {
		return 0
	}
	return math.Floor(math.Log10(a.min))
}

func (a *axis) high() float64 {
	if a.max == 0 {
		return 1
	}
	return math.Max(math.Ceil(math.Log10(a.max)), a.low()+1)
}

// at is the place of a value. What is too small for the axis, such as 0, lies at its beginning.
func (a *axis) at(value float64) float64 {
	value = math.Max(value, math.Pow(10, a.low()))
	return a.from + (a.to-a.from)*(math.Log10(value)-a.low())/(a.high()-a.low())
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
	for power := x.low(); power <= x.high(); power++ {
		at := x.at(math.Pow(10, power))
		s.add(`<path class="grid" d="M%.1f %.1fV%.1f"/>`, at, top, bottom)
		s.text(at, bottom+16, "small", "middle", number(math.Pow(10, power)))
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
		s.add(`<polyline points="%s" stroke="%s" stroke-width="2" fill="none"/>`, strings.Join(points, " "), color(i))
		s.add(`<rect x="%.1f" y="%.1f" width="12" height="12" fill="%s"/>`, width-right+14, top+float64(i)*20, color(i))
		s.text(width-right+32, top+float64(i)*20+11, "", "start", v)
	}
}
