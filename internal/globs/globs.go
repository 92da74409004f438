// Package globs helps to list files by patterns of filepath.Glob.
package globs

import "strings"

// Escape quotes what filepath.Match would take for a pattern.
func Escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}
