package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-dev/berth/internal/signals"
)

// signalExitCode is the exit code of a command that ended before its work was done, because ctx did.
func signalExitCode(ctx context.Context) exitCode { return exitCode(signals.ExitCode(ctx)) }

// isInterrupted tells whether an error says no more than that the work was to stop.
func isInterrupted(err error) bool {
	return errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled
}

// serviceAnnotation is the annotation of a command that is asked to stop when it has done its work.
const serviceAnnotation = "berth.dev/service"

// markService marks a command that runs until it is asked to stop: to be asked is how its work ends, with exit code 0.
func markService(cmd *cobra.Command) *cobra.Command {
	cmd.Annotations = map[string]string{serviceAnnotation: "true"}
	return cmd
}

// interruptedExitCode is the exit code of a command that ended with that error when berth had been asked to stop, if the error is
// no other than that.
func interruptedExitCode(ctx context.Context, cmd *cobra.Command, err error) (code int, ok bool) {
	if by := (signals.Signal{}); !errors.As(context.Cause(ctx), &by) || !isInterrupted(err) {
		return 0, false
	}
	if cmd.Annotations[serviceAnnotation] != "" {
		return 0, true
	}
	return int(signalExitCode(ctx)), true
}

// interruptibleReader is standard input, for one reader, who reads no more once ctx has ended: a read from a terminal, or from a program
// that says nothing, would hold berth up for ever.
type interruptibleReader struct {
	io.Reader
	ctx context.Context
	buf []byte
}

// Read implements io.Reader. A read that ctx cuts short goes on behind, for nobody: it ends with the program.
func (p *interruptibleReader) Read(data []byte) (int, error) {
	if err := p.ctx.Err(); err != nil {
		return 0, fmt.Errorf("read standard input: %w", err)
	}
	if len(p.buf) < len(data) {
		p.buf = make([]byte, len(data))
	}
	into := p.buf[:len(data)] // not data itself, which is the caller's again when ctx has ended
	var n int
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		n, err = p.Reader.Read(into)
	}()
	select {
	case <-done:
		return copy(data, into[:n]), err
	case <-p.ctx.Done():
		return 0, fmt.Errorf("read standard input: %w", p.ctx.Err())
	}
}

// brokenPipeWriter is a writer that tells when nobody reads any more what is written.
type brokenPipeWriter struct {
	io.Writer
	onBroken func(error)
}

// Write implements io.Writer.
func (h brokenPipeWriter) Write(data []byte) (int, error) {
	n, err := h.Writer.Write(data)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.EIO) { // a pipe, a terminal
		h.onBroken(err)
	}
	return n, err
}

// contextUntilOutputBreaks is cmd's context, which ends also when nobody reads any more what cmd writes, as when `| head` has had
// enough. It is for what outlives its readers for a while, to stop in order.
func contextUntilOutputBreaks(cmd *cobra.Command) context.Context {
	ctx, cancel := context.WithCancelCause(cmd.Context())
	gone := func(err error) { cancel(fmt.Errorf("nobody reads the output: %w", err)) }
	cmd.SetOut(brokenPipeWriter{cmd.OutOrStdout(), gone})
	cmd.SetErr(brokenPipeWriter{cmd.ErrOrStderr(), gone})
	return ctx
}
