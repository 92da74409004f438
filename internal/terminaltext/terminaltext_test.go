package terminaltext

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTextIsHarmless(t *testing.T) {
	for text, want := range map[string][2]string{ // of Line, of Lines
		"plain — Grüße, 世界":           {"plain — Grüße, 世界", "plain — Grüße, 世界"},
		" two\nlines\tand\r\n more\n": {"two lines and   more", " two\nlines\tand\uFFFD\n more\n"},
		"\x1b[2J\x07\x7f\u009b31m":    {"\uFFFD[2J\uFFFD\uFFFD\uFFFD31m", "\uFFFD[2J\uFFFD\uFFFD\uFFFD31m"},
		"a\u202etxt.exe\u2066b":       {"a\uFFFDtxt.exe\uFFFDb", "a\uFFFDtxt.exe\uFFFDb"},
		"no \x9b UTF-8":               {"no \uFFFD UTF-8", "no \uFFFD UTF-8"},
	} {
		require.Equal(t, want, [2]string{Line(text), Lines(text)}, "%q", text)
	}
}
