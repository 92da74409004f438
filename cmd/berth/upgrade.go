package main

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/up"
)

func newUpgrade() *cobra.Command {
	var check bool
	cmd := &cobra.Command{
		Use: "upgrade --check", Short: "Find out whether this berth can run the cluster that another version ran", Args: noArgs,
		Long: "An upgrade is a newer berth in the place of the old one, and then a restart, which takes over the cluster with its data; as a\n" +
			"service with its running Pods, too. With --check this command says whether this berth would do that, and changes nothing.\n\n" +
			"Exit codes: 0 yes, 1 no.",
		Example: "  berth upgrade --check",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !check {
				return usageError{errors.New("give --check: an upgrade itself is the newer package or program, and then a restart")}
			}
			dir, err := dataDir(cmd)
			if err != nil {
				return err
			}
			layout, err := complete(up.Config{DataDir: dir})
			if err != nil {
				return err
			}
			upgrade, err := up.CheckUpgrade(layout.DataDir)
			if err != nil {
				return err
			}
			return printUpgrade(cmd, upgrade)
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "check, and change nothing")
	return cmd
}

// printUpgrade prints what was found. Its error says why the upgrade is refused.
func printUpgrade(cmd *cobra.Command, u up.Upgrade) error {
	table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
	fmt.Fprintf(table, "cluster\t%s, last run by %s\n", u.DataDir, u.Last)
	fmt.Fprintf(table, "this\t%s\n", u.This)
	fmt.Fprintf(table, "data\tformat %d; this berth reads formats up to %d\n", u.Format, u.KnownFormat)
	next := "not running: start it with this berth"
	switch {
	case u.Running && u.Unit != "" && !u.Isolated:
		next = "running: `systemctl restart " + u.Unit + "` starts it with the installed berth, and its Pods run on"
	case u.Running && u.Unit != "":
		next = "running: `systemctl restart " + u.Unit + "` starts it with the installed berth, and its Pods start again"
	case u.Running:
		next = "running: stop it, which ends its Pods in order, and start it with this berth"
	}
	fmt.Fprintf(table, "cluster is\t%s\n", next)
	if u.Refused == nil {
		fmt.Fprintf(table, "upgrade\tpossible\n")
	}
	return errors.Join(table.Flush(), u.Refused)
}
