package suite

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"
)

// Header is what a report says about the circumstances.
type Header struct {
	// Title is the report's; "Conformance" if empty.
	Title string
	// Command is what to run to get the report again.
	Command string
	// Suite is the suite's version, Subject the program that is tested, with its version, Machine the kind of machine, which
	// Subject may name, too.
	Suite, Subject, Machine string
	// Accumulated says that the results are of several runs.
	Accumulated bool
	// Expected is how many specs must pass, List the name of the file that has them.
	Expected int
	List     string
	// Notes are sentences for the reader, such as which images have no stub.
	Notes []string
	// Hide is left out of failures wherever it stands: the hosts of image names, which say nothing here.
	Hide []string
}

// WriteReport writes the result as Markdown.
func (r Result) WriteReport(w io.Writer, header Header) error {
	var b strings.Builder
	areas, tallies := r.areas()
	var sum tally
	for _, t := range tallies {
		sum = tally{sum.passed + t.passed, sum.failed + t.failed, sum.notRun + t.notRun}
	}
	fmt.Fprintf(&b, "# %s\n\nWritten by `%s` on %s. ", cmp.Or(header.Title, "Conformance"), header.Command,
		r.Began.UTC().Format(time.DateOnly))
	took := "the specs took " + r.Took.Round(time.Second).String()
	if header.Accumulated {
		took += " together, in as many runs as were needed"
	}
	subject := strings.TrimSuffix(header.Subject+", "+header.Machine, ", ")
	fmt.Fprintf(&b, "Upstream's suite %s, %s; %s.\n\n", header.Suite, subject, took)
	fmt.Fprintf(&b, "**%d passed, %d failed, %d not run.** ", sum.passed, sum.failed, sum.notRun)
	fmt.Fprintf(&b, "Of %d specs that must pass (%s) %d did, %d failed, %d did not run.\n\n", header.Expected, header.List,
		header.Expected-len(r.Regressed)-len(r.Missing)-len(r.Unknown), len(r.Regressed), len(r.Missing)+len(r.Unknown))
	if r.Broken != "" {
		fmt.Fprintf(&b, "The suite itself failed: %s\n\n", cell(r.Broken))
	}
	for _, note := range header.Notes {
		fmt.Fprintf(&b, "%s\n\n", note)
	}
	b.WriteString("| area | passed | failed | not run |\n| --- | ---: | ---: | ---: |\n")
	for _, area := range areas {
		t := tallies[area]
		fmt.Fprintf(&b, "| %s | %d | %d | %d |\n", cell(area), t.passed, t.failed, t.notRun)
	}
	r.writeFailures(&b, header.Hide)
	r.writeFlaked(&b, header.Hide)
	r.writeNotRun(&b)
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func (r Result) writeFailures(b *strings.Builder, hide []string) {
	must := make(map[string]bool)
	for _, spec := range r.Regressed {
		must[spec.Name] = true
	}
	b.WriteString("\n## Failures\n\n")
	none := true
	for _, spec := range r.Specs {
		if !spec.Failed {
			continue
		}
		none = false
		mark := ""
		if must[spec.Name] {
			mark = " (must pass)"
		}
		fmt.Fprintf(b, "- %s%s, after %s  \n  `%s`\n", cell(spec.Name), mark, spec.Took.Round(time.Second),
			without(strings.ReplaceAll(spec.Reason, "`", "'"), hide))
	}
	if none {
		b.WriteString("None.\n")
	}
}

// writeFlaked owns up to what passed, but not at once.
func (r Result) writeFlaked(b *strings.Builder, hide []string) {
	b.WriteString("\n## Passed at a later attempt\n\n")
	none := true
	for _, spec := range r.Specs {
		if spec.Flaked() {
			none = false
			fmt.Fprintf(b, "- %s, at attempt %d; before that  \n  `%s`\n", cell(spec.Name), spec.Attempts,
				without(strings.ReplaceAll(spec.Reason, "`", "'"), hide))
		}
	}
	if none {
		b.WriteString("None.\n")
	}
}

func (r Result) writeNotRun(b *strings.Builder) {
	b.WriteString("\n## Not run\n\n")
	none := true
	listed := make(map[string]bool)
	for _, spec := range r.Specs {
		if spec.Passed || spec.Failed {
			continue
		}
		none, listed[spec.Name] = false, true
		fmt.Fprintf(b, "- %s: %s\n", cell(spec.Name), cell(spec.Reason))
	}
	left := 0
	for _, name := range r.Missing {
		if !listed[name] {
			left++
		}
	}
	if left > 0 {
		none = false
		fmt.Fprintf(b, "- %d specs that must pass were left out of this run by its focus\n", left)
	}
	for _, name := range r.Unknown {
		none = false
		fmt.Fprintf(b, "- %s (must pass): the suite has no such spec\n", cell(name))
	}
	if none {
		b.WriteString("None.\n")
	}
}

func without(text string, hide []string) string {
	for _, word := range hide {
		text = strings.ReplaceAll(text, word, "")
	}
	return text
}

// cell makes text safe inside a table or a list.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "*", `\*`, "<", "&lt;", "\n", " ").Replace(text)
}
