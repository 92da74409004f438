// Command sh is /bin/sh of the stub images: busybox's shell, except where the environment holds a name that is
// no shell variable. Upstream's busybox hands such names on to the programs it starts, Debian's drops them, and bash
// hands them on but words its errors otherwise; so each does what it does right.
package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

func main() {
	shell := "/bin/busybox"
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); !isVariable(name) {
			shell = "/bin/bash"
			break
		}
	}
	err := syscall.Exec(shell, os.Args, os.Environ())
	fmt.Fprintf(os.Stderr, "sh: start %s: %v\n", shell, err)
	os.Exit(126)
}

// isVariable says whether a shell can hold the name.
func isVariable(name string) bool {
	for i, char := range name {
		letter := char == '_' || char >= 'a' && char <= 'z' || char >= 'A' && char <= 'Z'
		if !letter && (i == 0 || char < '0' || char > '9') {
			return false
		}
	}
	return name != ""
}
