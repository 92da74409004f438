package envvars

import (
	"strings"
)

// Expand replaces $(NAME) in text with the value that lookup returns for NAME. A reference to an unknown name stays
// unchanged, and "$$" becomes "$", so that "$$(NAME)" yields the text "$(NAME)". Any other "$" stays unchanged.
func Expand(text string, lookup func(name string) (string, bool)) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "$")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		switch {
		case strings.HasPrefix(after, "$"):
			b.WriteByte('$')
			text = after[1:]
		case strings.HasPrefix(after, "("):
			name, rest, closed := strings.Cut(after[1:], ")")
			if !closed {
				b.WriteString("$(")
				text = after[1:]
				continue
			}
			if value, known := lookup(name); known {
				b.WriteString(value)
			} else {
				b.WriteString("$(" + name + ")")
			}
			text = rest
		default:
			b.WriteByte('$')
			text = after
		}
	}
}

// ExpandAll expands every text with the variables of env.
func ExpandAll(texts []string, env []Var) []string {
	if len(texts) == 0 {
		return nil
	}
	values := lookupFunc(env)
	expanded := make([]string, len(texts))
	for i, text := range texts {
		expanded[i] = Expand(text, values)
	}
	return expanded
}

// lookupFunc returns a lookup of variables by name. Of several with the same name the last one counts.
func lookupFunc(env []Var) func(string) (string, bool) {
	values := make(map[string]string, len(env))
	for _, v := range env {
		values[v.Name] = v.Value
	}
	return func(name string) (string, bool) {
		value, ok := values[name]
		return value, ok
	}
}
