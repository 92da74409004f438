package explain

import (
	"fmt"
	"io"
	"strings"
)

// Print writes the answer for people. Width is the terminal's width in columns; 0 means that the output is not
// a terminal, and then no bars are drawn.
func Print(w io.Writer, a *Answer, width int) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s/%s: %s\n", a.Object.Kind, a.Object.Namespace, a.Object.Name, a.Verdict)
	if len(a.Stages) > 0 {
		b.WriteString("\n")
		waterfall(&b, a.Stages, width)
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
	if a.Next != "" {
		fmt.Fprintf(&b, "\nNext: %s\n", a.Next)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

const (
	labelWidth = 34
	timesWidth = 24
	leastBar   = 10
)

// waterfall writes a line a stage: its name, when it began and how long it took, and a bar to scale.
func waterfall(b *strings.Builder, stages []Stage, width int) {
	total := 0.0
	for _, stage := range stages {
		total = max(total, stage.OffsetMs+stage.DurationMs)
	}
	fmt.Fprintf(b, "  %-*s %10s %12s\n", labelWidth, "STAGE", "AT", "TOOK")
	for _, stage := range stages {
		fmt.Fprintf(b, "  %-*s %7.0f ms %9s", labelWidth, label(stage), stage.OffsetMs, took(stage))
		if room := width - labelWidth - timesWidth - 4; room >= leastBar && total > 0 {
			fmt.Fprintf(b, "  %s", bar(stage, total, room))
		}
		if stage.Error != "" {
			fmt.Fprintf(b, "  error: %s", stage.Error)
		}
		b.WriteString("\n")
	}
}

func took(stage Stage) string {
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
	if !strings.HasPrefix(stage.Object, "Pod/") {
		text = "claim: " + text
	}
	if stage.Subject != "" {
		text += " " + stage.Subject
	}
	if stage.Attempt > 1 {
		text += fmt.Sprintf(" (%d)", stage.Attempt)
	}
	if len(text) > labelWidth {
		text = text[:labelWidth-1] + "…"
	}
	return text
}

func bar(stage Stage, total float64, room int) string {
	from := int(stage.OffsetMs / total * float64(room))
	length := max(1, int(stage.DurationMs/total*float64(room)+0.5))
	from = min(from, room-1)
	length = min(length, room-from)
	mark := "█"
	if stage.DurationMs == 0 {
		mark = "│"
	}
	return strings.Repeat(" ", from) + strings.Repeat(mark, length)
}
