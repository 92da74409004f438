package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// untilAsked is a context that ends when berth is asked to stop, with the signal as its cause: by SIGINT, by SIGTERM, or
// by SIGHUP, which is how a terminal that goes away tells the programs on it.
//
// A second SIGINT or SIGTERM, with the handler gone, ends berth at once. SIGHUP never does: a login shell passes it on, and
// the kernel sends it once more when that shell has ended, so that one closed terminal makes two of them, which are no
// person in a hurry. Whoever has it ignored, as nohup has, wants berth to outlive the terminal.
func untilAsked() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	asked, reset := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(asked, func() {
		reset()
		cancel(context.Cause(asked))
	})
	if !signal.Ignored(syscall.SIGHUP) { // to be notified would end that
		hungUp, _ := signal.NotifyContext(context.Background(), syscall.SIGHUP) // it stays caught
		context.AfterFunc(hungUp, func() { cancel(context.Cause(hungUp)) })
	}
	return ctx
}
