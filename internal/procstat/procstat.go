// Package procstat splits the line by which the kernel describes a process (/proc/PID/stat, proc(5)).
package procstat

import (
	"bytes"
	"strings"
)

// The places of fields in what Fields returns; proc(5) counts them from 1, and the state is its third.
const (
	State, Parent, Terminal = 3 - first, 4 - first, 7 - first
	Threads, Start          = 20 - first, 22 - first

	first = 3
)

// Fields returns the fields after the name, from the state on. The name is in parentheses and may have any characters: what follows the last
// parenthesis counts.
func Fields(stat []byte) []string {
	return strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
}
