package main

import (
	"context"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// cancelWriter cancels when it is written to.
type cancelWriter context.CancelFunc

func (w cancelWriter) Write(data []byte) (int, error) {
	w()
	return len(data), nil
}

func TestACommandThatASignalEndsIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := &cobra.Command{}
	cmd.SetOut(cancelWriter(cancel))
	require.ErrorIs(t, runChild(ctx, cmd, []string{"sh", "-c", "echo ready; exec sleep 1000"}), context.Canceled)
	require.Equal(t, exitCode(3), runChild(t.Context(), cmd, []string{"sh", "-c", "exit 3"}))
	require.ErrorContains(t, runChild(t.Context(), cmd, []string{"sh", "-c", "kill -9 $$"}), "run sh: signal: killed")
}
