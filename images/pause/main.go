package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// version is replaced by the linker (-X main.version=…).
var version = "dev"

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is main without the process around it; it returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 1 && (args[0] == "-v" || args[0] == "--version") {
		fmt.Fprintln(stdout, "pause", version)
		return 0
	}
	if len(args) > 0 {
		fmt.Fprintf(stderr, "pause: unknown argument %q: it takes none but -v\n", args[0])
		return 2
	}
	// Buffer a few signals of each kind: the runtime drops what does not fit, and one SIGCHLD is enough to
	// reap every child that is dead by then.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	defer signal.Stop(signals)
	pause(signals, reap)
	return 0
}

// pause returns at the first signal that asks to end, and calls reap at every SIGCHLD before it.
func pause(signals <-chan os.Signal, reap func()) {
	for got := range signals {
		if got != syscall.SIGCHLD {
			return
		}
		reap()
	}
}

// reap collects every child that has ended, and returns when none is left that has.
func reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
	}
}
