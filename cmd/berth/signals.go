package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"syscall"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/signals"
)

// signalExitCode returns the exit code of a command that ended early because ctx was cancelled.
func signalExitCode(ctx context.Context) exitCode { return exitCode(signals.ExitCode(ctx)) }

// isInterrupted reports whether an error only says that the work was cancelled, or by which signal. Of errors that were joined, each
// has to: nothing else reports what failed besides, as the cleanup. One that has another error as its detail is a single error.
func isInterrupted(err error) bool {
	switch wrapper := err.(type) { //nolint:errorlint // errors.As and errors.Is pass over what is joined
	case interface{ Unwrap() []error }:
		if reflect.TypeOf(err) != reflect.TypeOf(errors.Join(err)) {
			break
		}
		return !slices.ContainsFunc(wrapper.Unwrap(), func(err error) bool { return !isInterrupted(err) })
	case interface{ Unwrap() error }:
		if inner := wrapper.Unwrap(); inner != nil {
			return isInterrupted(inner)
		}
	}
	return errors.Is(err, context.Canceled) || errors.As(err, new(signals.Signal)) || status.Code(err) == codes.Canceled
}

// serviceAnnotation marks a command that runs until it is stopped.
const serviceAnnotation = "berth.dev/service"

// markService marks a command that runs until a signal stops it: that is its normal end, with exit code 0.
func markService(cmd *cobra.Command) *cobra.Command {
	cmd.Annotations = map[string]string{serviceAnnotation: "true"}
	return cmd
}

// interruptedExitCode returns the exit code of a command that returned err after a signal. ok is false if there was no
// signal, or if err says more than that the work was cancelled.
func interruptedExitCode(ctx context.Context, cmd *cobra.Command, err error) (code int, ok bool) {
	if by := (signals.Signal{}); !errors.As(context.Cause(ctx), &by) || !isInterrupted(err) {
		return 0, false
	}
	if cmd.Annotations[serviceAnnotation] != "" {
		return 0, true
	}
	return int(signalExitCode(ctx)), true
}

// interruptibleReader is standard input for one reader whose reads end when ctx is done: a read from a terminal or a
// silent pipe would otherwise block berth forever.
type interruptibleReader struct {
	io.Reader
	ctx context.Context
	buf []byte
}

// Read implements io.Reader. A read that ctx interrupts continues in the background until the program ends; its data is
// dropped.
func (p *interruptibleReader) Read(data []byte) (int, error) {
	if err := p.ctx.Err(); err != nil {
		return 0, fmt.Errorf("read standard input: %w", err)
	}
	if len(p.buf) < len(data) {
		p.buf = make([]byte, len(data))
	}
	into := p.buf[:len(data)] // not data itself, which belongs to the caller again when ctx is done
	var n int
	var err error
	done := make(chan struct{})
	go func() {
		defer contain.Recover("berth.Read", "")
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

// brokenPipeWriter is a writer that reports when its reader is gone.
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

// contextUntilOutputBreaks returns cmd's context, which is also cancelled when the reader of cmd's output is gone, as
// when `| head` exits. It is for commands that clean up after that.
func contextUntilOutputBreaks(cmd *cobra.Command) context.Context {
	ctx, cancel := context.WithCancelCause(cmd.Context())
	gone := func(err error) { cancel(fmt.Errorf("output closed by its reader: %w", err)) }
	cmd.SetOut(brokenPipeWriter{cmd.OutOrStdout(), gone})
	cmd.SetErr(brokenPipeWriter{cmd.ErrOrStderr(), gone})
	return ctx
}
