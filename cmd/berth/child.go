package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// runChild runs the command that a command of berth is for, with further variables of the environment, and ends it by SIGTERM when ctx is done.
// The error is its exit code if that is not 0, or that of ctx if a signal has ended it after that.
func runChild(ctx context.Context, cmd *cobra.Command, command []string, env ...string) error {
	child := exec.CommandContext(ctx, command[0], command[1:]...)
	child.Cancel = func() error { return child.Process.Signal(unix.SIGTERM) }
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, cmd.OutOrStdout(), cmd.ErrOrStderr()
	child.Env = append(os.Environ(), env...)
	err := child.Run()
	var exited *exec.ExitError
	if errors.As(err, &exited) && exited.ExitCode() > 0 {
		return exitCode(exited.ExitCode())
	}
	if exited != nil && ctx.Err() != nil {
		err = ctx.Err() // berth was stopped, and exits as the signal says
	}
	if err != nil {
		return fmt.Errorf("run %s: %w", command[0], err)
	}
	return nil
}
