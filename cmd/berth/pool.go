package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/up/disposable"
)

const (
	// defaultPoolSize is enough for tests that start one cluster after the other.
	defaultPoolSize = 2
	// poolStartTimeout bounds the start of one cluster, which takes some two seconds: a busy machine is slow.
	poolStartTimeout = 3 * time.Minute
	// programsVariable names the directory of the programs for package berthtest.
	programsVariable = "BERTH_BIN"
)

func newPool() *cobra.Command {
	size := defaultPoolSize
	cmd := &cobra.Command{
		Use: "pool [--size N] -- COMMAND…", Short: "Run tests with clusters that are ready before they want them",
		Long: "Runs a command, such as go test, and keeps clusters ready meanwhile: a test that starts one by package berthtest gets it at once, and the\n" +
			"next one is started. A cluster is used once and ends with the process that took it; all end with COMMAND, whose exit code this command has.\n" +
			"A test that gives its cluster flags of its own starts it itself. A ready cluster needs some 400 MiB of memory, and hardly any CPU.",
		Example: "  berth pool -- go test ./...\n  berth pool --size 8 -- go test -parallel 8 ./operator",
		RunE: func(cmd *cobra.Command, command []string) error {
			if size < 1 {
				return usageError{fmt.Errorf("--size %d: want 1 or more", size)}
			}
			if len(command) == 0 || cmd.ArgsLenAtDash() != 0 {
				return usageError{fmt.Errorf("want a command to run after --: see %s --help", cmd.CommandPath())}
			}
			if os.Geteuid() != 0 {
				return errors.New("containers need root: use sudo -E berth pool …")
			}
			return runPool(cmd.Context(), cmd, size, command)
		},
	}
	cmd.Flags().IntVar(&size, "size", size, "how many clusters are ready at a time")
	return cmd
}

// runPool runs the command with a pool.
func runPool(ctx context.Context, cmd *cobra.Command, size int, command []string) (err error) {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	dir, err := os.MkdirTemp("", "berth-pool-") // with mode 0700
	if err != nil {
		return fmt.Errorf("make a directory for the pool's socket: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	config := disposable.Config{Berth: program, Root: disposable.Root()}
	// COMMAND is stopped first; its clusters run until it has ended.
	pool, err := disposable.NewPool(context.WithoutCancel(ctx), size, dir, func(ctx context.Context) (*disposable.Cluster, error) {
		ctx, cancel := context.WithTimeout(ctx, poolStartTimeout)
		defer cancel()
		return disposable.Start(ctx, config)
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pool.Close()) }()
	return runChild(ctx, cmd, command, disposable.PoolEnv+"="+filepath.Join(dir, disposable.SocketName), programsVariable+"="+filepath.Dir(program))
}
