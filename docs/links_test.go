package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

var (
	markdownLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	markdownHeading = regexp.MustCompile(`(?m)^#+ (.+)$`)
)

// TestLinksLeadSomewhere fails for a link between documents to a file or a heading that does not exist, and for a document that no other
// one links to.
func TestLinksLeadSomewhere(t *testing.T) {
	var documents []string
	for _, pattern := range []string{"../*.md", "*.md", "requirements/*.md", "reference/*.md", "../conformance/*.md", "../examples/*.md"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		documents = append(documents, found...)
	}
	require.Greater(t, len(documents), 20)
	linked := map[string]bool{absolute(t, "../README.md"): true}
	for _, document := range documents {
		data, err := os.ReadFile(document)
		require.NoError(t, err)
		for _, link := range markdownLink.FindAllStringSubmatch(string(data), -1) {
			if strings.Contains(link[1], "://") {
				continue
			}
			path, heading, _ := strings.Cut(link[1], "#")
			target := document
			if path != "" {
				target = filepath.Join(filepath.Dir(document), path)
			}
			text, err := os.ReadFile(target)
			if info, statErr := os.Stat(target); statErr == nil && info.IsDir() {
				continue
			}
			if err != nil {
				t.Errorf("%s links to %s, which does not exist", document, link[1])
				continue
			}
			if target != document {
				linked[absolute(t, target)] = true
			}
			if heading != "" && !hasHeading(string(text), heading) {
				t.Errorf("%s links to %s, which has no such heading", document, link[1])
			}
		}
	}
	for _, document := range documents {
		if !linked[absolute(t, document)] {
			t.Errorf("no document links to %s: add it to docs/README.md", document)
		}
	}
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	require.NoError(t, err)
	return path
}

// hasHeading reports whether a document has a heading with the anchor.
func hasHeading(text, anchor string) bool {
	for _, heading := range markdownHeading.FindAllStringSubmatch(text, -1) {
		if anchorOf(heading[1]) == anchor {
			return true
		}
	}
	return false
}

// anchorOf is the anchor of a heading: letters, digits and hyphens, in lower case, and hyphens for spaces.
func anchorOf(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

func TestAnchorsOfHeadings(t *testing.T) {
	require.True(t, hasHeading("# One\n\n## IPv4 and `IPv6`, both\n", "ipv4-and-ipv6-both"))
	require.False(t, hasHeading("text\n", "text"))
}
