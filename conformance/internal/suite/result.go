package suite

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/onsi/ginkgo/v2/types"
)

// Spec is how one spec ended.
type Spec struct {
	// Name is the full name, as lists of specs have it.
	Name string
	// Area is what the spec is about, the first words of its name: "node: Pods".
	Area string
	// Passed, or Failed, or neither: then it did not run.
	Passed, Failed bool
	// Reason is the first line of the failure, or why the suite itself skipped the spec.
	Reason string
	// Took is how long it ran.
	Took time.Duration
	// Interrupted says that the run ended while the spec ran, which has failed then.
	Interrupted bool
	// Attempts is how often it ran. What passed at a later attempt has the reason of an earlier failure.
	Attempts int
}

// Flaked says whether the spec passed, but not at once.
func (s Spec) Flaked() bool { return s.Passed && s.Attempts > 1 }

// Result is what came out of a run. Build it with [Evaluate].
type Result struct {
	// Specs are all that the focus selected, by name.
	Specs []Spec
	// Broken is a failure outside any spec, such as before the suite's start; empty if there is none.
	Broken string
	// Unknown are names of the expected list that the suite does not have.
	Unknown []string
	// Regressed are specs of the expected list that failed.
	Regressed []Spec
	// Missing are specs of the expected list that were not run.
	Missing []string
	// Ran is how many specs ran.
	Ran int
	// Began and Took are the suite's.
	Began time.Time
	Took  time.Duration
}

// Evaluate reads ginkgo's report against the list of specs that must pass.
func Evaluate(report types.Report, expected []string) Result {
	result := Result{Began: report.StartTime, Took: report.RunTime}
	known := make(map[string]*Spec)
	for _, entry := range report.SpecReports {
		if entry.LeafNodeType != types.NodeTypeIt {
			if entry.State.Is(types.SpecStateFailureStates) && result.Broken == "" {
				result.Broken = fmt.Sprintf("%s: %s", entry.LeafNodeType, firstLine(entry.Failure.Message))
			}
			continue
		}
		spec := newSpec(entry)
		known[spec.Name] = &spec
		if spec.Passed || spec.Failed {
			result.Ran++
		}
		// What the focus left out is skipped without a word.
		if spec.Passed || spec.Failed || spec.Reason != "" {
			result.Specs = append(result.Specs, spec)
		}
	}
	slices.SortFunc(result.Specs, func(a, b Spec) int { return cmp.Compare(a.Name, b.Name) })
	result.compare(known, expected)
	return result
}

// compare finds the specs of the expected list that failed, did not run or do not exist.
func (r *Result) compare(known map[string]*Spec, expected []string) {
	for _, name := range expected {
		spec, ok := known[name]
		switch {
		case !ok:
			r.Unknown = append(r.Unknown, name)
		case spec.Failed:
			r.Regressed = append(r.Regressed, *spec)
		case !spec.Passed:
			r.Missing = append(r.Missing, name)
		}
	}
}

// suiteTimeout begins ginkgo's message about a spec that the time limit of the whole run ended. A limit of the spec's own has
// the same state.
const suiteTimeout = "A suite timeout"

func newSpec(entry types.SpecReport) Spec {
	spec := Spec{Name: entry.FullText(), Took: entry.RunTime, Area: areaOf(entry), Attempts: entry.NumAttempts}
	switch {
	case entry.State.Is(types.SpecStatePassed):
		spec.Passed = true
		if len(entry.AdditionalFailures) > 0 {
			// ginkgo puts a line of its own before the message.
			_, message, _ := strings.Cut(entry.AdditionalFailures[0].Failure.Message, "\n")
			spec.Reason = firstLine(message)
		}
	case entry.State.Is(types.SpecStateFailureStates):
		spec.Failed = true
		spec.Interrupted = entry.State.Is(types.SpecStateInterrupted|types.SpecStateAborted) ||
			entry.State.Is(types.SpecStateTimedout) && strings.HasPrefix(entry.Failure.Message, suiteTimeout)
		spec.Reason = cmp.Or(firstLine(entry.Failure.Message), entry.State.String())
		if entry.Failure.ForwardedPanic != "" {
			spec.Reason += ": " + firstLine(entry.Failure.ForwardedPanic)
		}
	default:
		spec.Reason = firstLine(entry.Failure.Message)
	}
	return spec
}

var (
	sig    = regexp.MustCompile(`^\[sig-([a-z-]+)\] *`)
	labels = regexp.MustCompile(` *\[[^\]]*\]`)
)

// areaOf is the outermost container's text without its labels: "[sig-node] Pods" is "node: Pods".
func areaOf(entry types.SpecReport) string {
	if len(entry.ContainerHierarchyTexts) == 0 {
		return "other"
	}
	text := entry.ContainerHierarchyTexts[0]
	group := "other"
	if match := sig.FindStringSubmatch(text); match != nil {
		group, text = match[1], text[len(match[0]):]
	}
	return group + ": " + cmp.Or(strings.TrimSpace(labels.ReplaceAllString(text, "")), "other")
}

// longestReason keeps a failure on one line of a table.
const longestReason = 300

// needsNextLine matches a line that is useless without the next one: it begins a dump, or only says that time was up.
var needsNextLine = regexp.MustCompile(`([{\[:]|Timed out after [0-9.]+m?s\.)$`)

// firstLine returns the first useful line. The dump that a line begins is omitted down to the next line that is not
// indented and has words.
func firstLine(message string) string {
	if text := strings.Join(strings.Fields(message), " "); strings.HasPrefix(text, "Expected <") {
		return shorten(text) // a comparison, which is short as a rule
	}
	var parts []string
	for line := range strings.Lines(message) {
		text := strings.TrimSpace(line)
		inside := len(parts) > 0 && (line[0] == ' ' || line[0] == '\t')
		if text == "" || inside || !strings.ContainsFunc(text, unicode.IsLetter) {
			continue
		}
		parts = append(parts, text)
		if !needsNextLine.MatchString(text) {
			break
		}
	}
	return shorten(strings.Join(parts, " … "))
}

func shorten(line string) string {
	if runes := []rune(line); len(runes) > longestReason {
		return string(runes[:longestReason]) + "…"
	}
	return line
}

// Verdict is nil if the run proves what it should: something ran, and nothing of the expected list failed. With
// complete, every spec of that list must have run too.
func (r Result) Verdict(complete bool) error {
	switch {
	case r.Broken != "":
		return fmt.Errorf("the suite is broken: %s", r.Broken)
	case r.Ran == 0:
		return fmt.Errorf("no spec ran: the focus matches none, or all that it matches were skipped")
	case len(r.Unknown) > 0:
		return fmt.Errorf("%d names of the expected list are no specs of the suite, the first is %q",
			len(r.Unknown), r.Unknown[0])
	case len(r.Regressed) > 0:
		return fmt.Errorf("%d specs that must pass failed, the first is %q", len(r.Regressed), r.Regressed[0].Name)
	case complete && len(r.Missing) > 0:
		return fmt.Errorf("%d specs that must pass did not run, the first is %q", len(r.Missing), r.Missing[0])
	}
	return nil
}

// tally is one area's count.
type tally struct{ passed, failed, notRun int }

func (r Result) areas() ([]string, map[string]tally) {
	tallies := make(map[string]tally)
	for _, spec := range r.Specs {
		t := tallies[spec.Area]
		switch {
		case spec.Passed:
			t.passed++
		case spec.Failed:
			t.failed++
		default:
			t.notRun++
		}
		tallies[spec.Area] = t
	}
	return slices.Sorted(maps.Keys(tallies)), tallies
}
