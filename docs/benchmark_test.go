package docs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// benchmarkSections are the sections of the CIS Kubernetes Benchmark 1.12 that kube-bench checks, with how many items each has.
var benchmarkSections = map[string]int{
	"1.1": 21, "1.2": 30, "1.3": 7, "1.4": 2, "2": 7, "3.1": 3, "3.2": 2, "4.1": 10, "4.2": 14, "4.3": 1,
	"5.1": 13, "5.2": 12, "5.3": 2, "5.4": 2, "5.5": 1, "5.6": 4,
}

// benchmarkChecks are the tests whose items begin with their numbers.
var benchmarkChecks = []string{"../controlplane/apiserver/benchmark_test.go", "../test/integration/benchmark_test.go", "../up/services_test.go"}

var (
	itemRange = regexp.MustCompile(`^(\d+(?:\.\d+)*)\.(\d+)(?: to (\d+(?:\.\d+)*)\.(\d+))?`)
	itemText  = regexp.MustCompile(`"(\d+\.\d+[\d., to]*)`)
)

// itemsOf returns the numbers that a text begins with: "1.1.1 to 1.1.3, 1.2.1 words".
func itemsOf(t *testing.T, text string) []string {
	t.Helper()
	var items []string
	for {
		match := itemRange.FindStringSubmatch(text)
		if match == nil {
			return items
		}
		first, err := strconv.Atoi(match[2])
		require.NoError(t, err)
		last := first
		if match[4] != "" {
			require.Equal(t, match[1], match[3], text)
			last, err = strconv.Atoi(match[4])
			require.NoError(t, err)
		}
		for i := first; i <= last; i++ {
			items = append(items, fmt.Sprintf("%s.%d", match[1], i))
		}
		text = strings.TrimPrefix(text[len(match[0]):], ", ")
	}
}

// TestBenchmarkIsDocumented checks that docs/security.md says of each item of the benchmark whether it holds, with the reason where it does
// not, and that a test checks each that holds.
func TestBenchmarkIsDocumented(t *testing.T) {
	checked := make(map[string]bool)
	for _, file := range benchmarkChecks {
		source, err := os.ReadFile(filepath.FromSlash(file))
		require.NoError(t, err)
		for _, match := range itemText.FindAllStringSubmatch(string(source), -1) {
			for _, item := range itemsOf(t, match[1]) {
				checked[item] = true
			}
		}
	}
	page, err := os.ReadFile("security.md")
	require.NoError(t, err)
	states := make(map[string]string)
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 5 || itemRange.FindString(strings.TrimSpace(cells[1])) == "" {
			continue
		}
		state, reason := strings.TrimSpace(cells[2]), strings.TrimSpace(cells[3])
		require.Contains(t, []string{"pass", "hardened", "n/a", "no"}, state, line)
		require.True(t, state == "pass" || reason != "", "the reason: %s", line)
		for _, item := range itemsOf(t, strings.TrimSpace(cells[1])) {
			require.Empty(t, states[item], "%s is there twice", item)
			states[item] = state
		}
	}
	var unknown []string
	for section, count := range benchmarkSections {
		for i := 1; i <= count; i++ {
			item := fmt.Sprintf("%s.%d", section, i)
			switch state := states[item]; {
			case state == "":
				t.Errorf("docs/security.md does not say whether %s holds", item)
			case (state == "pass" || state == "hardened") && !checked[item]:
				t.Errorf("no test checks %s, which docs/security.md says holds (%s)", item, state)
			}
			delete(states, item)
		}
	}
	for item := range states {
		unknown = append(unknown, item)
	}
	slices.Sort(unknown)
	require.Empty(t, unknown, "the benchmark has no such items")
}
