package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

func newKubectl() *cobra.Command {
	return &cobra.Command{
		Use: "kubectl …", Short: "kubectl, already pointed at the cluster", DisableFlagParsing: true,
		Long: "Runs kubectl with all its commands and flags. It talks to berth's own cluster, whatever KUBECONFIG says,\n" +
			"unless --kubeconfig is given.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--kubeconfig") }) {
				layout, err := layoutOf(cmd)
				if err != nil {
					return err
				}
				path := layout.AdminKubeconfig()
				if _, err := os.Stat(path); err != nil && !asksForHelp(args) {
					return fmt.Errorf("there is no cluster in %s: start one with `berth up`, or name one with --data-dir (%w)",
						layout.DataDir, err)
				}
				if _, err := os.Stat(layout.Socket()); err != nil && !asksForHelp(args) {
					fmt.Fprintf(os.Stderr, "berth: no cluster is running on %s; `berth up` starts it\n", layout.DataDir)
				}
				// Plug-ins get these too: kubectl-why finds the cluster's records by the directory.
				if err := errors.Join(os.Setenv("KUBECONFIG", path), os.Setenv(dataDirVariable, layout.DataDir)); err != nil {
					return fmt.Errorf("point kubectl at the cluster: %w", err)
				}
			}
			command := kubectl.NewDefaultKubectlCommandWithArgs(kubectl.KubectlOptions{
				PluginHandler: kubectl.NewDefaultPluginHandler([]string{"kubectl"}),
				Arguments:     append([]string{"kubectl"}, args...),
				IOStreams:     genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr},
			})
			command.SetArgs(args)
			if err := cli.RunNoErrOutput(command); err != nil {
				util.CheckErr(err) // prints as kubectl does, and exits with kubectl's code
			}
			return nil
		},
	}
}

// asksForHelp reports whether kubectl will only tell about itself, which needs no cluster.
func asksForHelp(args []string) bool {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end] // what follows is a Pod's command
	}
	return len(args) == 0 || args[0] == "help" || slices.Contains(args, "--help") || slices.Contains(args, "-h")
}
