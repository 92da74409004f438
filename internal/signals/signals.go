// Package signals is how a program hears that it is to stop, outlives the readers of its output while it does, and tells
// by its exit code what ended it.
package signals

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// Signal is the cause of a context that a signal ended.
type Signal struct{ syscall.Signal }

func (s Signal) Error() string { return s.String() + " signal received" }

// Context is a context that ends when the program is asked to stop, with the [Signal] as its cause: by SIGINT, by SIGTERM,
// or by SIGHUP, which is how a terminal that goes away tells the programs on it. A program asks for it once; it lasts as
// long as the program.
//
// A second SIGINT or SIGTERM, with the handler gone, ends the program at once. SIGHUP never does: a login shell passes it
// on, and the kernel sends it once more when that shell has ended, so that one closed terminal makes two of them, which are
// no person in a hurry. Whoever has it ignored, as nohup has, wants the program to outlive the terminal.
//
// From then on a write that nobody reads fails and does not end the program: of `program | tee`, Ctrl-C ends tee first.
func Context() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	stops, hangups := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(stops, syscall.SIGINT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // to be notified would end that
		signal.Notify(hangups, syscall.SIGHUP) // it stays caught
	}
	stop := func(came os.Signal) {
		IgnoreSIGPIPE()
		cancel(Signal{came.(syscall.Signal)})
	}
	go func() {
		for {
			select {
			case came := <-stops:
				signal.Stop(stops)
				stop(came)
			case came := <-hangups:
				stop(came)
			}
		}
	}()
	return ctx
}

// IgnoreSecondSignal has a second SIGINT or SIGTERM end the program as little as the first: for one that gets two of a single Ctrl-C,
// the terminal's and that of the program which started it.
func IgnoreSecondSignal() { signal.Notify(make(chan os.Signal, 1), syscall.SIGINT, syscall.SIGTERM) }

// IgnoreSIGPIPE has a write to standard output or standard error that nobody reads any more fail, where it would end the
// program.
func IgnoreSIGPIPE() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// ExitCode is that of a program which ended before its work was done because ctx did: 128 and the number of the signal, as
// for any program on Unix. A reader who goes away is SIGPIPE, a terminal that does is SIGHUP. ctx must have ended.
func ExitCode(ctx context.Context) int {
	cause, by := context.Cause(ctx), Signal{syscall.SIGPIPE}
	if !errors.As(cause, &by) && errors.Is(cause, syscall.EIO) {
		by.Signal = syscall.SIGHUP
	}
	return 128 + int(by.Signal)
}
