// Package requirements_test keeps the requirements true to the tests and to the product.
package requirements_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/testfuncs"
)

// requirement is one item of the files of this directory.
type requirement struct {
	id, status, sentence string
	tests, specs         []string
	missing              string
}

var (
	// requirementItem is the first paragraph of an item: its id, its status, and what is required.
	requirementItem = regexp.MustCompile(`^- \*\*([A-Z]+-[0-9]+)\*\* \((met|partly|not yet)\) (.+)$`)
	quoted          = regexp.MustCompile("`([^`]+)`")
)

// TestRequirements keeps the files of this directory true: each id exists once, each sentence is whole, the tests and
// the specs exist, what is met has a test, and what is not met says what is missing.
func TestRequirements(t *testing.T) {
	specs, err := os.ReadFile("../../conformance/expected.txt")
	require.NoError(t, err)
	tests := map[string]map[string]bool{}
	seen := map[string]bool{}
	all := readRequirements(t)
	require.Greater(t, len(all), 400)
	for _, r := range all {
		if seen[r.id] {
			t.Errorf("%s: there are two requirements of that id", r.id)
		}
		seen[r.id] = true
		if problem := r.check(); problem != "" {
			t.Errorf("%s: %s", r.id, problem)
		}
		for _, test := range r.tests {
			dir, name := path.Split(strings.Replace(test, ".", "/", 1))
			if tests[dir] == nil {
				found, err := testfuncs.List(filepath.Join("../..", dir), "Test", "Benchmark", "Fuzz", "Example")
				if err != nil {
					found = map[string]bool{}
				}
				tests[dir] = found
			}
			if !tests[dir][name] {
				t.Errorf("%s: there is no test %s", r.id, test)
			}
		}
		for _, spec := range r.specs {
			if !strings.Contains(string(specs), spec) {
				t.Errorf("%s: conformance/expected.txt has no spec %q", r.id, spec)
			}
		}
	}
}

// TestRequirementsAreRead parses a file and finds what is wrong with its items.
func TestRequirementsAreRead(t *testing.T) {
	got := parseRequirements("# Title\n\nText.\n\n- **A-1** (met) It works on\n  Tuesdays.\n  Tests: `a/b.TestX`,\n  `c.TestY`.\n" +
		"  Specs: `one`; `two`.\n- **A-2** (not yet) It flies.\n  Missing: wings.\n")
	require.Equal(t, []requirement{
		{id: "A-1", status: "met", sentence: "It works on Tuesdays.", tests: []string{"a/b.TestX", "c.TestY"}, specs: []string{"one", "two"}},
		{id: "A-2", status: "not yet", sentence: "It flies.", missing: "wings."},
	}, got)
	for want, r := range map[string]requirement{
		"":                                {status: "met", sentence: "It works on Tuesdays.", tests: []string{"a.TestX"}},
		"no whole sentence":               {status: "met", sentence: "works", tests: []string{"a.TestX"}},
		"it is met and has no test":       {status: "met", sentence: "It works on Tuesdays."},
		"it is partly and has no test":    {status: "partly", sentence: "It works on Tuesdays.", missing: "wings."},
		"it does not say what is missing": {status: "partly", sentence: "It works on Tuesdays.", tests: []string{"a.TestX"}},
		"it is not yet met and has tests": {status: "not yet", sentence: "It works on Tuesdays.", tests: []string{"a.TestX"}, missing: "wings."},
	} {
		require.Equal(t, want, r.check())
	}
}

// check returns what is wrong with a requirement by itself.
func (r requirement) check() string {
	switch {
	case !strings.HasSuffix(r.sentence, ".") || len(strings.Fields(r.sentence)) < 4:
		return "no whole sentence"
	case r.status == "not yet" && len(r.tests) > 0:
		return "it is not yet met and has tests"
	case r.status != "not yet" && len(r.tests) == 0:
		return "it is " + r.status + " and has no test"
	case r.status != "met" && r.missing == "":
		return "it does not say what is missing"
	}
	return ""
}

func readRequirements(t *testing.T) []requirement {
	t.Helper()
	files, err := filepath.Glob("*.md")
	require.NoError(t, err)
	index, err := os.ReadFile("README.md")
	require.NoError(t, err)
	var all []requirement
	for _, file := range files {
		if filepath.Base(file) == "README.md" {
			continue
		}
		require.Contains(t, string(index), "("+filepath.Base(file)+")", "README.md must list the file")
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		found := parseRequirements(string(data))
		require.Len(t, found, strings.Count(string(data), "\n- "), "%s: an item has another form", file)
		all = append(all, found...)
	}
	return all
}

// parseRequirements joins the lines of each item to its paragraphs, and reads those.
func parseRequirements(text string) []requirement {
	var all []requirement
	var paragraphs []string
	finish := func() {
		if len(paragraphs) > 0 {
			if match := requirementItem.FindStringSubmatch(paragraphs[0]); match != nil {
				all = append(all, newRequirement(match, paragraphs[1:]))
			}
		}
		paragraphs = nil
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "- "):
			finish()
			paragraphs = []string{line}
		case !strings.HasPrefix(line, "  ") || len(paragraphs) == 0:
			finish()
		case slices.ContainsFunc([]string{"Tests: ", "Specs: ", "Missing: ", "Note: "}, func(label string) bool {
			return strings.HasPrefix(line[2:], label)
		}):
			paragraphs = append(paragraphs, line[2:])
		default:
			paragraphs[len(paragraphs)-1] += " " + line[2:]
		}
	}
	finish()
	return all
}

func newRequirement(match, paragraphs []string) requirement {
	r := requirement{id: match[1], status: match[2], sentence: match[3]}
	for _, paragraph := range paragraphs {
		label, content, _ := strings.Cut(paragraph, ": ")
		var names []string
		for _, name := range quoted.FindAllStringSubmatch(content, -1) {
			names = append(names, name[1])
		}
		switch label {
		case "Tests":
			r.tests = names
		case "Specs":
			r.specs = names
		case "Missing":
			r.missing = content
		}
	}
	return r
}
