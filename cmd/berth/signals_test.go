package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-dev/berth/internal/signals"
)

// TestExitCodeIsThatOfTheSignal ends commands that work, and one that serves, by each signal.
func TestExitCodeIsThatOfTheSignal(t *testing.T) {
	for signal, code := range map[syscall.Signal]int{syscall.SIGHUP: 129, syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(signals.Signal{Signal: signal})
		work, serve := &cobra.Command{}, markService(&cobra.Command{})
		for _, err := range []error{
			fmt.Errorf("list: %w", context.Canceled), fmt.Errorf("call: %w", status.Error(codes.Canceled, "as it was")),
			fmt.Errorf("wait: %w", context.Cause(ctx)),
		} {
			got, ok := interruptedExitCode(ctx, work, err)
			require.True(t, ok)
			require.Equal(t, code, got)
			got, ok = interruptedExitCode(ctx, serve, err)
			require.True(t, ok)
			require.Zero(t, got, "a signal is the normal end of a service")
		}
		_, ok := interruptedExitCode(ctx, work, errors.New("disk full"))
		require.False(t, ok, "other errors are printed")
	}
	_, ok := interruptedExitCode(t.Context(), &cobra.Command{}, context.Canceled)
	require.False(t, ok, "there was no signal")
}

// TestInterruptedWithAnotherError ends a command by a signal, and something else fails while it ends.
func TestInterruptedWithAnotherError(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(signals.Signal{Signal: syscall.SIGINT})
	canceled, full := fmt.Errorf("list: %w", context.Canceled), errors.New("disk full")
	for name, test := range map[string]struct {
		err         error
		interrupted bool
	}{
		"both are of the signal":           {errors.Join(canceled, status.Error(codes.Canceled, "stop")), true},
		"one of them":                      {errors.Join(canceled, full), false},
		"one of them, wrapped":             {fmt.Errorf("save: %w", errors.Join(full, canceled)), false},
		"one of them, two levels below":    {errors.Join(canceled, errors.Join(canceled, full)), false},
		"with what was tried until then":   {fmt.Errorf("wait: %w (last error: %w)", context.Cause(ctx), full), true},
		"with that, and a cleanup's error": {errors.Join(fmt.Errorf("wait: %w (last error: %w)", canceled, full), full), false},
	} {
		for _, cmd := range []*cobra.Command{{}, markService(&cobra.Command{})} {
			_, ok := interruptedExitCode(ctx, cmd, test.err)
			require.Equal(t, test.interrupted, ok, name)
		}
	}
}

// TestASilentInputDoesNotHoldUp sends Ctrl-C while a command waits for input.
func TestASilentInputDoesNotHoldUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	read, write, err := os.Pipe()
	require.NoError(t, err)
	input := &interruptibleReader{Reader: read, ctx: ctx}
	_, err = io.WriteString(write, "y\nn\n")
	require.NoError(t, err)
	explanation := make([]byte, 2)
	_, err = io.ReadFull(input, explanation)
	require.NoError(t, err)
	require.Equal(t, "y\n", string(explanation))
	rest := make([]byte, 2)
	_, err = io.ReadFull(input, rest)
	require.NoError(t, err)
	require.Equal(t, "n\n", string(rest))
	ended := make(chan error, 1)
	go func() {
		_, err := input.Read(explanation)
		ended <- err
	}()
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.NoError(t, write.Close()) // which ends what went on behind
	require.Equal(t, "y\n", string(explanation))
}

func TestClosedOutputCancels(t *testing.T) {
	for name, its := range map[string]func(*cobra.Command) io.Writer{
		"output": (*cobra.Command).OutOrStdout, "errors": (*cobra.Command).ErrOrStderr,
	} {
		read, write, err := os.Pipe()
		require.NoError(t, err)
		cmd := &cobra.Command{}
		cmd.SetContext(t.Context())
		cmd.SetOut(write)
		cmd.SetErr(write)
		ctx := contextUntilOutputBreaks(cmd)
		_, err = io.WriteString(its(cmd), "heard\n")
		require.NoError(t, err)
		require.NoError(t, ctx.Err(), name)
		require.NoError(t, read.Close())
		_, err = io.WriteString(its(cmd), "unheard\n")
		require.ErrorIs(t, err, syscall.EPIPE)
		require.ErrorIs(t, context.Cause(ctx), syscall.EPIPE, name)
		require.NoError(t, write.Close())
	}
}
