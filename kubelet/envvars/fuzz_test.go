package envvars

import (
	"strings"
	"testing"
)

// FuzzExpand checks two properties of any text: without variables it is unchanged except for doubled dollars, and
// doubling every dollar prevents any expansion.
func FuzzExpand(f *testing.F) {
	for _, text := range []string{"", "$(A)", "$$(A)", "$($(A))", "a$", "$("} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		nothing := func(string) (string, bool) { return "", false }
		if !strings.Contains(text, "$$") && Expand(text, nothing) != text {
			t.Fatalf("%q became %q", text, Expand(text, nothing))
		}
		anything := func(string) (string, bool) { return "value", true }
		if got := Expand(strings.ReplaceAll(text, "$", "$$"), anything); got != text {
			t.Fatalf("%q came back as %q", text, got)
		}
	})
}

// FuzzParseFile parses any content of an environment file.
func FuzzParseFile(f *testing.F) {
	f.Add("A='b' # c\nD='e\nf'\n", "D")
	f.Add("A= 'b'\n=\n", "A")
	f.Fuzz(func(t *testing.T, content, key string) {
		value, found, err := parseFile(strings.NewReader(content), key)
		if (err != nil || !found) && value != "" {
			t.Fatalf("value %q of a key that was not found (%v)", value, err)
		}
		if strings.Contains(value, "'") {
			t.Fatalf("value %q goes past its closing quote", value)
		}
	})
}
