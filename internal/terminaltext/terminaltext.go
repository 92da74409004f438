package terminaltext

import (
	"strings"
	"unicode"
)

// Line returns the text as one line: without space around it, with a space for each line break and tab.
func Line(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r == '\r' {
			return ' '
		}
		return visible(r)
	}, strings.TrimSpace(text))
}

// Lines returns the text with its line breaks and tabs.
func Lines(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		return visible(r)
	}, text)
}

// visible replaces what a terminal obeys instead of showing it, and what makes it show text in another order.
func visible(r rune) rune {
	if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
		return unicode.ReplacementChar
	}
	return r
}
