// Package shellword writes words of the commands that messages suggest, so that a user can copy them to a shell.
package shellword

import (
	"strings"
	"unicode"
)

// plain are the characters besides letters and digits that no POSIX shell treats in a special way.
const plain = "_@%+=:,./-"

// Quote returns a word as a POSIX shell reads it: as it is, or in single quotes.
func Quote(word string) string {
	isSpecial := func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(plain, r)
	}
	if word != "" && !strings.ContainsFunc(word, isSpecial) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
