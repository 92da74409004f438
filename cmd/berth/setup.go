package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/internal/setup"
)

func newSetup() *cobra.Command {
	return &cobra.Command{
		Use: "setup", Short: "Build all programs of the version of Berth that a Go module requires", Args: noArgs,
		Long: "Builds all programs of the version of Berth that the Go module of the current directory requires, for tests with package berthtest.\n" +
			"They are kept in the user's cache directory; a checkout that the module uses in place of a version is built where it is. It needs\n" +
			"go, make and gcc, and some 6 minutes the first time. It prints the directory of the programs.",
		Example: "  go run github.com/berth-dev/berth/cmd/berth setup",
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := setup.Config{Output: os.Stderr}.Build(cmd.Context())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), dir)
			return err
		},
	}
}
