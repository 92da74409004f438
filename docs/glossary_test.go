package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// wordsAllowed are texts with a word to avoid that have to stay, by file.
var wordsAllowed = map[string][]string{
	"conformance/internal/stubimages/base.go": {"nobody:x:65534"}, // the user
	"kubelet/deps.go":                         {"kubeCfg"},        // the documented name of the parameter, here and below
	"kubelet/newmain.go":                      {"kubeCfg"},
	"kubelet/newmain_test.go":                 {"kubeCfg"},
}

// wordsUnchecked are the files and directories that are not checked, with the reason.
var wordsUnchecked = map[string]string{
	"docs/glossary_test.go": "tests with the words",
	"docs/glossary.md":      "lists the words",
	"docs/benchmarks.md":    "is generated from measurements, with the texts of their time",
	"docs/benchmarks":       "holds measurements",
	"conformance/node":      "holds reports with the messages of upstream's suite",
}

var (
	// glossaryRow is a row of a table of the glossary.
	glossaryRow = regexp.MustCompile(`(?m)^\| (.+) \| (.+) \|$`)
	quoted      = regexp.MustCompile("`([^`]+)`")
	// camelCase is where a new word of an identifier begins.
	camelCase = regexp.MustCompile(`([a-z0-9])([A-Z])`)
)

// TestWordsToAvoid finds the words that the glossary says to avoid, in all texts of the repository.
func TestWordsToAvoid(t *testing.T) {
	avoid := wordsToAvoid(t)
	found := 0
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel("..", path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		_, unchecked := wordsUnchecked[name]
		unchecked = unchecked || name == "bin" || strings.HasPrefix(entry.Name(), ".") && name != "."
		switch {
		case entry.IsDir() && unchecked:
			return filepath.SkipDir
		case entry.IsDir() || unchecked || !hasProse(name):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, place := range findWords(string(text), avoid, wordsAllowed[name]) {
			t.Errorf("%s:%s", name, place)
			found++
		}
		return nil
	})
	require.NoError(t, err)
	if found > 0 {
		t.Errorf("%d words that docs/glossary.md says to avoid", found)
	}
}

// TestFindWords tries the search on words, parts of identifiers, and what only resembles them.
func TestFindWords(t *testing.T) {
	avoid := regexp.MustCompile(`(?i)\b(tell|told|look again|nobody)\b`)
	text := "It was told.\nfunc tellStatus() {}\nlookAgain()\nintelligible; http.NoBody; teller\nnobody:x:1 and nobody\n"
	require.Equal(t, []string{
		"1: told: It was told.", "2: tell: func tellStatus() {}", "3: look Again: lookAgain()", "5: nobody: nobody:x:1 and nobody",
	}, findWords(text, avoid, nil))
	require.Len(t, findWords(text, avoid, []string{"nobody:x"}), 3)
}

// TestGlossary requires that each entry is a sentence and that the terms are sorted into no second entry.
func TestGlossary(t *testing.T) {
	data, err := os.ReadFile("glossary.md")
	require.NoError(t, err)
	terms, _, found := strings.Cut(string(data), "\n## Words to avoid\n")
	require.True(t, found)
	seen := map[string]bool{}
	for _, row := range glossaryRow.FindAllStringSubmatch(terms, -1)[2:] {
		require.False(t, seen[row[1]], "%s stands twice", row[1])
		seen[row[1]] = true
		require.True(t, strings.HasSuffix(row[2], "."), row[1])
	}
}

// wordsToAvoid matches the words of the glossary's second table.
func wordsToAvoid(t *testing.T) *regexp.Regexp {
	t.Helper()
	data, err := os.ReadFile("glossary.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(data), "\n## Words to avoid\n")
	require.True(t, found)
	var words []string
	for _, row := range glossaryRow.FindAllStringSubmatch(table, -1) {
		for _, word := range quoted.FindAllStringSubmatch(row[1], -1) {
			words = append(words, strings.ReplaceAll(regexp.QuoteMeta(word[1]), " ", `\s+`))
		}
	}
	require.Greater(t, len(words), 50)
	return regexp.MustCompile(`(?i)\b(` + strings.Join(words, "|") + `)\b`)
}

// hasProse reports whether a file may hold sentences or names of ours.
func hasProse(name string) bool {
	base := filepath.Base(name)
	return slices.Contains([]string{".go", ".md", ".sh", ".yaml", ".yml", ".ts", ".html", ".service"}, filepath.Ext(name)) || base == "Makefile"
}

// findWords returns the lines with such a word, as "LINE: WORD: TEXT". A word may be a part of an identifier.
func findWords(text string, avoid *regexp.Regexp, allowed []string) []string {
	var places []string
	number := 0
	for line := range strings.Lines(text) {
		number++
		word := avoid.FindString(camelCase.ReplaceAllString(strings.ReplaceAll(line, "_", " "), "$1 $2"))
		if word == "" || slices.ContainsFunc(allowed, func(text string) bool { return strings.Contains(line, text) }) {
			continue
		}
		places = append(places, strings.Join([]string{strconv.Itoa(number), word, strings.TrimSpace(line)}, ": "))
	}
	return places
}
