package main

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-dev/berth/internal/suggest"
)

// newHelp returns `berth help`, which unlike cobra's own rejects unknown commands.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "Help about a command",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil {
				return usageError{err}
			}
			if len(rest) > 0 && about.HasSubCommands() {
				return unknownCommand(about, rest[0])
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

// showHelp is the action of a command that only has subcommands.
func showHelp(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// requireSubcommand rejects the arguments of a command that only has subcommands: they are unknown subcommands.
func requireSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return unknownCommand(cmd, args[0])
}

// flagError replaces pflag's error by one that says what the flag accepts, or which flag was probably meant.
func flagError(cmd *cobra.Command, err error) error {
	err = describeFlagError(err)
	if near := closestFlag(cmd, err); near != "" {
		return usageError{fmt.Errorf("%w: did you mean --%s?", err, near)}
	}
	return usageError{fmt.Errorf("%w: see %s --help", err, cmd.CommandPath())}
}

// describeFlagError replaces pflag's error about a value by one that says what the flag accepts.
func describeFlagError(err error) error {
	var invalid *pflag.InvalidValueError
	var number *strconv.NumError
	if errors.As(err, &invalid) {
		wants := map[string]string{
			"int": "a whole number", "int32": "a whole number", "int64": "a whole number", "bool": "true or false",
			"duration": "a time such as 30s or 5m",
		}[invalid.GetFlag().Value.Type()]
		if errors.As(err, &number) && errors.Is(number, strconv.ErrRange) {
			wants = "a number that fits"
		}
		if wants != "" {
			err = fmt.Errorf("--%s %q: not %s", invalid.GetFlag().Name, invalid.GetValue(), wants)
		}
	}
	return err
}

// unknownCommand returns the error for an unknown subcommand of cmd, with the closest known one.
func unknownCommand(cmd *cobra.Command, word string) error {
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(word); len(near) > 0 {
		return usageError{fmt.Errorf("unknown command %q: did you mean %q?", word, near[0])}
	}
	return usageError{fmt.Errorf("unknown command %q: see %s --help", word, cmd.CommandPath())}
}

// closestFlag returns the flag of cmd that a misspelt one probably means; empty if err is another error or none is close.
func closestFlag(cmd *cobra.Command, err error) string {
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
	return suggest.Closest(unknown.GetSpecifiedName(), known)
}

// noArgs rejects arguments of a command that takes none.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("unexpected argument %q: see %s --help", args[0], cmd.CommandPath())}
	}
	return nil
}
