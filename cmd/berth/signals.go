package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// untilAsked is a context that ends when berth is asked to stop, with the signal as its cause: by SIGINT, by SIGTERM, or
// by SIGHUP, which is how a terminal that goes away tells the programs on it.
//
// A second SIGINT or SIGTERM, with the handler gone, ends berth at once. SIGHUP never does: a login shell passes it on, and
// the kernel sends it once more when that shell has ended, so that one closed terminal makes two of them, which are no
// person in a hurry. Whoever has it ignored, as nohup has, wants berth to outlive the terminal.
//
// From then on a write that nobody reads fails and does not end berth: of `berth … | tee`, Ctrl-C ends tee first.
func untilAsked() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	stop := func(why error) {
		outliveReaders()
		cancel(why)
	}
	asked, reset := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(asked, func() {
		reset()
		stop(context.Cause(asked))
	})
	if !signal.Ignored(syscall.SIGHUP) { // to be notified would end that
		hungUp, _ := signal.NotifyContext(context.Background(), syscall.SIGHUP) // it stays caught
		context.AfterFunc(hungUp, func() { stop(context.Cause(hungUp)) })
	}
	return ctx
}

// outliveReaders has a write to standard output or standard error that nobody reads any more fail, where it would end the
// program.
func outliveReaders() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// heard is a writer that tells when nobody reads any more what is written.
type heard struct {
	io.Writer
	gone func(error)
}

// Write implements io.Writer.
func (h heard) Write(data []byte) (int, error) {
	n, err := h.Writer.Write(data)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.EIO) { // a pipe, a terminal
		h.gone(err)
	}
	return n, err
}

// untilUnheard is cmd's context, which ends also when nobody reads any more what cmd writes, as when `| head` has had
// enough. It is for what outlives its readers for a while, to stop in order.
func untilUnheard(cmd *cobra.Command) context.Context {
	ctx, cancel := context.WithCancelCause(cmd.Context())
	gone := func(err error) { cancel(fmt.Errorf("nobody reads the output: %w", err)) }
	cmd.SetOut(heard{cmd.OutOrStdout(), gone})
	cmd.SetErr(heard{cmd.ErrOrStderr(), gone})
	return ctx
}
