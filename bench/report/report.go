package report

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-dev/berth/bench/harness"
)

const head = `# Benchmarks

Berth compared with the software that it replaces: the same work, on the same machine, in the same run. Each sample is a
process of its own, and the variants alternate. A cell is the median of the samples, and in brackets the lowest and the
highest. *Ratio* is Berth's median divided by the other's; the *target* is the project's own goal. The machine may have
been busy with other things: the load average at each sample is stored, and its range is below each table.

This file and the plots are generated from [benchmarks/](benchmarks/) by ` + "`make bench`" + ` (` +
	"`make bench-NAME`" + ` for one of them).
`

// Write writes benchmarks.md and benchmarks/*.svg in docs from the data in docs/benchmarks.
func Write(docs string, benchmarks []harness.Benchmark) error {
	var text strings.Builder
	text.WriteString(head)
	data := filepath.Join(docs, "benchmarks")
	for _, b := range benchmarks {
		d, err := harness.Load(data, b.Name)
		if err != nil {
			return err
		}
		if d == nil {
			d = &harness.Data{Name: b.Name, Title: b.Title, About: b.About, NotMeasured: "never run"}
		}
		fmt.Fprintf(&text, "\n## %s (`%s`)\n\n%s\n\n", d.Title, d.Name, d.About)
		if d.NotMeasured != "" {
			fmt.Fprintf(&text, "**Not measured**: %s.\n", strings.TrimSuffix(d.NotMeasured, "."))
			continue
		}
		plots, err := draw(d, data)
		if err != nil {
			return err
		}
		for _, plot := range plots {
			fmt.Fprintf(&text, "![%s](benchmarks/%s)\n\n", d.Title, plot)
		}
		writeData(&text, d)
	}
	path := filepath.Join(docs, "benchmarks.md")
	if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func writeData(text *strings.Builder, d *harness.Data) {
	for i := range d.Cases {
		writeCase(text, &d.Cases[i])
	}
	low, high := d.Load()
	fmt.Fprintf(text, "%s; %d cores of %s, %.0f GiB, kernel %s, cgroup %s; load average %.1f to %.1f",
		d.Taken.Format("2006-01-02 15:04"), d.Machine.Cores, d.Machine.CPU, d.Machine.MemMiB/1024, d.Machine.Kernel,
		d.Machine.Cgroup, low, high)
	names := make([]string, 0, len(d.Versions))
	for name := range d.Versions {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(text, "; %s %s", name, d.Versions[name])
	}
	text.WriteString(".\n")
}

func writeCase(text *strings.Builder, c *harness.CaseData) {
	fmt.Fprintf(text, "| %s%s |", c.Name, rounds(c))
	for _, v := range c.Variants {
		fmt.Fprintf(text, " %s |", v)
	}
	text.WriteString(" ratio | target |\n| --- |" + strings.Repeat(" ---: |", len(c.Variants)+1) + " --- |\n")
	for _, m := range c.Metrics {
		fmt.Fprintf(text, "| %s, %s |", m.Name, m.Unit)
		for _, v := range c.Variants {
			fmt.Fprintf(text, " %s |", cell(c, v, m))
		}
		fmt.Fprintf(text, " %s | %s |\n", ratios(c, m.Name), targets(c, m))
	}
	text.WriteString("\n")
	for _, v := range c.Variants {
		if reason, failed := c.Failed[v]; failed {
			fmt.Fprintf(text, "%s, %s: a sample failed: %s\n\n", c.Name, v, reason)
		}
	}
}

// rounds returns the number of samples of the medians.
func rounds(c *harness.CaseData) string {
	most := 0
	for _, s := range c.Samples {
		most = max(most, s.Round+1)
	}
	switch most {
	case 0:
		return ""
	case 1:
		return " (1 round)"
	}
	return fmt.Sprintf(" (%d rounds)", most)
}

func cell(c *harness.CaseData, variant string, metric harness.Metric) string {
	s := harness.Summarize(c.Values(variant, metric.Name))
	switch {
	case s.Count == 0 && metric.Optional:
		return "-"
	case s.Count == 0:
		return "not measured"
	case s.Count == 1:
		return number(s.Median)
	}
	return fmt.Sprintf("%s (%s to %s)", number(s.Median), number(s.Min), number(s.Max))
}

// ratios are those of Berth to each of the others, in their order.
func ratios(c *harness.CaseData, metric string) string {
	var all []string
	for _, other := range c.Variants[1:] {
		ratio, _, known := c.Verdict(harness.Target{Metric: metric, Against: other})
		if !known {
			all = append(all, "-")
			continue
		}
		all = append(all, number(ratio))
	}
	return strings.Join(all, ", ")
}

func targets(c *harness.CaseData, m harness.Metric) string {
	var all []string
	for _, t := range c.Targets {
		if t.Metric != m.Name {
			continue
		}
		sign := "<="
		if m.Better == harness.Higher {
			sign = ">="
		}
		what := sign + " " + number(t.Ratio)
		if t.Against != "" {
			what += " of " + t.Against
		}
		if t.Of != "" {
			what = t.Of + " " + what
		}
		switch _, met, known := c.Verdict(t); {
		case !known:
			what += ": not measured"
		case met:
			what += ": met"
		default:
			what += ": **missed**"
		}
		all = append(all, what)
	}
	return strings.Join(all, "; ")
}

// number writes a value with three significant digits.
func number(v float64) string {
	switch size := math.Abs(v); {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "-"
	case size >= 10_000:
		digits := strconv.FormatFloat(math.Round(v/100)*100, 'f', 0, 64)
		for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
			digits = digits[:i] + "," + digits[i:]
		}
		return digits
	case size >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case size >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case size >= 0.1 || size == 0:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}
