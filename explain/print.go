package explain

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// Style is how an explanation is printed for people.
type Style struct {
	// Width is the terminal's width in columns; 0 means that the output is not a terminal, and then no bars are drawn.
	Width int
	// Color is whether to colour by escape sequences.
	Color bool
}

// The escape sequences of a terminal's own colours, which follow its user's theme.
const (
	plain  = "\x1b[0m"
	bold   = "\x1b[1m"
	faint  = "\x1b[2m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
)

func (s Style) paint(color, text string) string {
	if !s.Color || text == "" {
		return text
	}
	return color + text + plain
}

func (s Style) state(state State, text string) string {
	switch state {
	case Ready, Succeeded:
		return s.paint(green, text)
	case Failed:
		return s.paint(red, text)
	default:
		return s.paint(yellow, text)
	}
}

// Print prints the explanation for people, without colours. width is the terminal's width in columns; 0 means that the
// output is not a terminal, and then no bars are drawn.
func Print(w io.Writer, a *Explanation, width int) error { return Style{Width: width}.Print(w, a) }

// Print prints the verdict, the stages, where the time went, the evidence, and the next command.
func (s Style) Print(w io.Writer, a *Explanation) error {
	a = printable(a)
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", s.paint(bold, Title(a)), s.state(a.State, a.Verdict))
	if a.HeldBy != "" && a.Stuck() {
		fmt.Fprintf(&b, "Held by: %s\n", a.HeldBy)
	}
	if !a.NextChangeAt.IsZero() && a.Stuck() {
		fmt.Fprintf(&b, "Next change expected at: %s\n", a.NextChangeAt.Local().Format(time.TimeOnly))
	}
	if len(a.Stages) > 0 {
		b.WriteString("\n")
		s.waterfall(&b, a.Stages)
	}
	if a.TimeBreakdown != nil && len(a.TimeBreakdown.Segments) > 0 {
		s.breakdown(&b, a.TimeBreakdown)
	}
	if a.Trace != "" {
		fmt.Fprintf(&b, "Trace: %s\n", a.Trace)
	}
	if len(a.Evidence) > 0 {
		b.WriteString("\nEvidence:\n")
		for _, e := range a.Evidence {
			fmt.Fprintf(&b, "  %s %s: %s\n", e.Object, e.Field, e.Text)
		}
	}
	for _, text := range a.Unseen {
		fmt.Fprintf(&b, "\nNot seen: %s\n", text)
	}
	if a.Remedy != "" && a.Stuck() {
		fmt.Fprintf(&b, "\nRemedy: %s\n", a.Remedy)
	}
	if a.Next != "" {
		fmt.Fprintf(&b, "\nNext: %s\n", s.paint(bold, a.Next))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Title names the explanation's object: "Pod default/web", "Node n1".
func Title(a *Explanation) string {
	if a.Object.Namespace == "" {
		return a.Object.Kind + " " + a.Object.Name
	}
	return a.Object.Kind + " " + a.Object.Namespace + "/" + a.Object.Name
}

// PrintList prints a line for each explanation: object, state, reason, age, verdict.
func (s Style) PrintList(w io.Writer, explanations []*Explanation, now time.Time) error {
	var b strings.Builder
	title, reason := len("OBJECT"), len("REASON")
	explanations = printable(explanations)
	for _, a := range explanations {
		title, reason = max(title, len(listTitle(a))), max(reason, len(a.Reason))
	}
	fmt.Fprintf(&b, "%-*s  %-11s  %-*s  %8s  %s\n", title, "OBJECT", "STATE", reason, "REASON", "SINCE", "WHY")
	for _, a := range explanations {
		since := "?"
		if !a.Since.IsZero() {
			since = formatAge(now.Sub(a.Since))
		}
		line := fmt.Sprintf("%-*s  %s  %-*s  %8s  ", title, listTitle(a), s.state(a.State, fmt.Sprintf("%-11s", a.State)), reason,
			a.Reason, since)
		why := a.Verdict
		width := s.Width - title - reason - 11 - 8 - 8
		switch {
		case s.Width == 0:
		case width >= minWhyWidth:
			why = clip(why, width)
		default: // a narrow terminal shows the sentence below
			line, why = strings.TrimRight(line, " ")+"\n    ", clip(why, s.Width-5)
		}
		b.WriteString(line + why + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func listTitle(a *Explanation) string {
	name := ShortKind(a.Object.Kind) + "/" + a.Object.Name
	if a.Object.Namespace != "" {
		name = a.Object.Namespace + " " + name
	}
	return name
}

// formatAge is a duration as kubectl shows ages.
func formatAge(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(max(d, 0).Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

func clip(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}

// minShownMs is the minimum duration of a segment that is shown to people.
const minShownMs = 0.05

// minWhyWidth is the minimum width of a verdict beside the other columns.
const minWhyWidth = 40

const (
	labelWidth  = 34
	timesWidth  = 24
	minBarWidth = 10
)

// waterfall prints a line for each stage: its name, offset, duration, and a bar to scale.
func (s Style) waterfall(b *strings.Builder, stages []Stage) {
	total := 0.0
	for _, stage := range stages {
		total = max(total, stage.OffsetMs+stage.DurationMs)
	}
	fmt.Fprintf(b, "  %-*s %10s %12s\n", labelWidth, "STAGE", "AT", "TOOK")
	for _, stage := range stages {
		fmt.Fprintf(b, "  %s %7.0f ms %9s", pad(label(stage), labelWidth), stage.OffsetMs, durationText(stage))
		width := s.Width - labelWidth - timesWidth - 4
		if width >= minBarWidth && total > 0 {
			color := green
			switch {
			case stage.Error != "":
				color = red
			case !stage.Done():
				color = yellow
			}
			blank, mark := bar(stage, total, width)
			b.WriteString("  " + blank + s.paint(color, mark))
		}
		if stage.Error != "" && width < minBarWidth {
			fmt.Fprintf(b, "  error: %s", stage.Error)
		}
		b.WriteString("\n")
		if stage.Error != "" && width >= minBarWidth {
			fmt.Fprintf(b, "    %s\n", s.paint(red, clip("error: "+stage.Error, s.Width-4)))
		}
		if more := stageNote(stage); more != "" {
			fmt.Fprintf(b, "    %s\n", s.paint(faint, more))
		}
	}
}

// minShownWaitMs is the minimum wait in a queue that is shown.
const minShownWaitMs = 5

// stageNote returns further facts of a stage: how long it waited in a queue and, unless it succeeded, for which object it
// works.
func stageNote(stage Stage) string {
	var parts []string
	if stage.WaitMs >= minShownWaitMs {
		parts = append(parts, fmt.Sprintf("waited %.0f ms in a queue", stage.WaitMs))
	}
	if stage.Cause != nil && (!stage.Done() || stage.Error != "") {
		parts = append(parts, fmt.Sprintf("for %s/%s", ShortKind(stage.Cause.Kind), stage.Cause.Name))
	}
	return strings.Join(parts, "; ")
}

func durationText(stage Stage) string {
	switch {
	case !stage.Done():
		return fmt.Sprintf("%.0f ms …", stage.DurationMs)
	case stage.DurationMs == 0:
		return ""
	default:
		return fmt.Sprintf("%.1f ms", stage.DurationMs)
	}
}

func label(stage Stage) string {
	text := stage.Name
	if strings.HasPrefix(stage.Object, KindClaim+"/") {
		text = "claim: " + text
	}
	if stage.Subject != "" {
		text += " " + stage.Subject
	}
	if stage.Attempt > 1 {
		text += fmt.Sprintf(" (%d)", stage.Attempt)
	}
	return clip(text, labelWidth)
}

// pad fills up to the width in runes, where Printf counts bytes.
func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
}

func bar(stage Stage, total float64, width int) (blank, mark string) {
	from := int(stage.OffsetMs / total * float64(width))
	length := max(1, int(stage.DurationMs/total*float64(width)+0.5))
	from = min(from, width-1)
	length = min(length, width-from)
	mark = "█"
	if stage.DurationMs == 0 {
		mark = "│"
	}
	return strings.Repeat(" ", from), strings.Repeat(mark, length)
}

// breakdown prints where the time of a start went, in order.
func (s Style) breakdown(b *strings.Builder, a *TimeBreakdown) {
	fmt.Fprintf(b, "\nWhere %.1f ms went:\n", a.TotalMs)
	for _, part := range a.Segments {
		if part.Ms < minShownMs {
			continue
		}
		name := pad(clip(part.Name, labelWidth), labelWidth)
		fmt.Fprintf(b, "  %s %9.1f ms  %s\n", name, part.Ms, s.paint(faint, part.Owner))
	}
}
