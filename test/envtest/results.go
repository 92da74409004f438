package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/onsi/ginkgo/v2/types"
)

// results say of each spec and test, as "SUITE: NAME", whether it passed. A name that several specs have passes if all of them do.
type results map[string]bool

func (r results) set(suite, name string, passed bool) {
	key := suite + ": " + strings.Join(strings.Fields(name), " ")
	if before, found := r[key]; found {
		passed = passed && before
	}
	r[key] = passed
}

func (r results) add(other results) { maps.Copy(r, other) }

func (r results) count() (passed, failed int) {
	for _, ok := range r {
		if ok {
			passed++
		} else {
			failed++
		}
	}
	return passed, failed
}

// addReport adds the specs of a report of ginkgo.
func (r results) addReport(suite, file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var reports []types.Report
	if err := json.Unmarshal(data, &reports); err != nil {
		return err
	}
	for _, report := range reports {
		for _, spec := range report.SpecReports {
			if spec.LeafNodeType == types.NodeTypeIt && !spec.State.Is(types.SpecStateSkipped|types.SpecStatePending) {
				r.set(suite, spec.FullText(), spec.State == types.SpecStatePassed)
			} else if spec.State.Is(types.SpecStateFailureStates) {
				r.set(suite, "["+spec.LeafNodeType.String()+"]", false)
			}
		}
	}
	return nil
}

// addTests adds the tests that are no suites of ginkgo, from the output of go test -v: what says how its specs ended is a suite.
func (r results) addTests(suite string, output io.Reader) {
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, 1<<20)
	isSuite := false
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if strings.HasPrefix(line, "=== RUN") {
			isSuite = false
		}
		isSuite = isSuite || strings.HasPrefix(line, "Running Suite:")
		for prefix, passed := range map[string]bool{"--- PASS: ": true, "--- FAIL: ": false} {
			if rest, ok := strings.CutPrefix(line, prefix); ok && !isSuite {
				name, _, _ := strings.Cut(rest, " ")
				r.set(suite, name, passed)
			}
		}
	}
}

const header = `# The specs and tests of controller-runtime's suites that pass with berthtest.Environment; "-update" writes this list. "!" marks those that
# pass with the API server alone (-api-only) and may fail on a whole cluster; the comment before them says why.

`

// write writes what passed to the list. Marks and comments of specs that are in the list stay, and so do other suites.
func (r results) write(file string, suites []string) error {
	before, err := readList(file)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	maps.DeleteFunc(before, func(name string, _ entry) bool {
		suite, _, _ := strings.Cut(name, ": ")
		return slices.Contains(suites, suite) && !r[name] && !before[name].differs
	})
	for name, passed := range r {
		if _, found := before[name]; passed && !found {
			before[name] = entry{}
		} else if !passed {
			fmt.Println("does not pass and is not written: " + name)
		}
	}
	return os.WriteFile(file, []byte(text(before)), 0o644)
}

// text is the list as a file: those that are marked stand last, below their reasons.
func text(list map[string]entry) string {
	var all strings.Builder
	all.WriteString(header)
	marked := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if e := list[name]; e.differs {
			marked[e.reason] = append(marked[e.reason], "!"+name)
		} else {
			all.WriteString(name + "\n")
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(marked)) {
		fmt.Fprintf(&all, "\n# %s\n%s\n", reason, strings.Join(marked[reason], "\n"))
	}
	return all.String()
}

// entry is what the list says of a spec.
type entry struct {
	differs bool
	reason  string
}

func readList(file string) (map[string]entry, error) {
	list := map[string]entry{}
	data, err := os.ReadFile(file)
	if err != nil {
		return list, err
	}
	comment := ""
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		name, differs := strings.CutPrefix(line, "!")
		switch {
		case line == "":
			comment = ""
		case strings.HasPrefix(line, "#"):
			comment = strings.TrimSpace(line[1:])
		case differs && comment == "":
			return list, fmt.Errorf("%s: %s: a comment before it has to say why it may fail, without an empty line between", file, line)
		default:
			list[name] = entry{differs: differs, reason: comment}
		}
	}
	return list, nil
}

// compare returns an error if a spec of the list did not pass. exceptions says that those that are marked need not.
func (r results) compare(file string, suites []string, exceptions bool) error {
	list, err := readList(file)
	if err != nil {
		return err
	}
	var bad []string
	passed, marked := 0, 0
	for _, name := range slices.Sorted(maps.Keys(list)) {
		suite, _, _ := strings.Cut(name, ": ")
		switch {
		case !slices.Contains(suites, suite):
		case r[name]:
			passed++
		case exceptions && list[name].differs:
			marked++
		default:
			bad = append(bad, name)
		}
	}
	fmt.Printf("%d of the list passed, %d did not as the list says, %d others did not\n", passed, marked, len(bad))
	if len(bad) > 0 {
		return fmt.Errorf("these have to pass:\n  %s", strings.Join(bad, "\n  "))
	}
	return nil
}
