// Command berth is a whole Kubernetes on one machine, and its node-and-storage half for any other cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-dev/berth/internal/spell"
	"github.com/berth-dev/berth/up"
)

// The exit codes of berth. kubectl's own commands keep kubectl's.
const (
	exitError = 1
	exitUsage = 2
)

// usageError is a call whose words are off.
type usageError struct{ error }

func main() {
	// The first signal asks for an orderly stop; the second, with the handler gone, ends berth at once.
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, cancel)
	os.Exit(run(ctx, pluginArgs(os.Args)))
}

func run(ctx context.Context, args []string) int {
	root := newRoot()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	var code exitCode
	if errors.As(err, &code) {
		return int(code)
	}
	fmt.Fprintln(os.Stderr, "berth: "+err.Error())
	var usage usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitError
}

// exitCode ends the program with this code and says nothing more.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// dataDirVariable is the environment variable that stands for --data-dir.
const dataDirVariable = "BERTH_DATA_DIR"

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "berth",
		Short: "A whole Kubernetes on one machine, which says why a Pod is not running yet",
		Long: "Berth takes a Pod and its PersistentVolumeClaim from manifest to a running process with its disk mounted,\n" +
			"on one machine with one command, and can say at any instant why it is not there yet.",
		SilenceUsage:     true,
		SilenceErrors:    true,
		TraverseChildren: true,
		Args: func(root *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return unknownCommand(root, args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	dataDir := os.Getenv(dataDirVariable)
	if dataDir == "" {
		dataDir = up.DefaultDataDir
	}
	root.PersistentFlags().String("data-dir", dataDir, "the cluster's directory (env "+dataDirVariable+")")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if near := nearestFlag(cmd, err); near != "" {
			return usageError{fmt.Errorf("%w: did you mean --%s?", err, near)}
		}
		return usageError{fmt.Errorf("%w: see %s --help", err, cmd.CommandPath())}
	})
	root.AddCommand(newUp(), newNode(), newControllers(), newCSIDriver(), newCSIProvisioner(), newRun(), newExplain(), newDoctor(), newKubectl(), newImages(), newVersion())
	return root
}

// layoutOf is the layout of the cluster that --data-dir names.
func layoutOf(cmd *cobra.Command) (up.Layout, error) {
	dir, err := cmd.Flags().GetString("data-dir")
	if err != nil {
		return up.Layout{}, err
	}
	config, err := up.Recall(up.Config{DataDir: dir}, func(string) bool { return false })
	if err != nil {
		return up.Layout{}, err
	}
	if config, err = config.Complete(); err != nil {
		return up.Layout{}, err
	}
	return up.NewLayout(config)
}

// unknownCommand is the error for a word that is no command of cmd's, with the nearest one that is.
func unknownCommand(cmd *cobra.Command, word string) error {
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(word); len(near) > 0 {
		return usageError{fmt.Errorf("unknown command %q: did you mean %q?", word, near[0])}
	}
	return usageError{fmt.Errorf("unknown command %q: see %s --help", word, cmd.CommandPath())}
}

// nearestFlag is the flag of cmd that a misspelt one stands for; empty if the error is another or none is near.
func nearestFlag(cmd *cobra.Command, err error) string {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return ""
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, f.Name)
		}
	})
	return spell.Nearest(unknown.GetSpecifiedName(), known)
}

// noArgs refuses words that a command has no use for.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("unexpected argument %q: see %s --help", args[0], cmd.CommandPath())}
	}
	return nil
}
