package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/up"
)

// kubectlProgram is kubectl's name below the directory of berth's programs.
const kubectlProgram = "kubectl"

// newKubectl makes the command that becomes kubectl, which is a program of its own beside berth: within berth, what kubectl
// sets up at every start would be paid by every node agent, in time and in memory.
func newKubectl() *cobra.Command {
	return &cobra.Command{
		Use: "kubectl …", Short: "kubectl, already pointed at the cluster", DisableFlagParsing: true,
		Long: "Runs kubectl with all its commands and flags. It talks to berth's own cluster, whatever KUBECONFIG says,\n" +
			"unless --kubeconfig is given. What needs no cluster, such as completion and version --client, works without one.",
		RunE: func(cmd *cobra.Command, args []string) error {
			layout, err := setUpKubectlEnv(cmd, args)
			if err != nil {
				return err
			}
			program := layout.Program(kubectlProgram)
			err = unix.Exec(program, append([]string{kubectlProgram}, args...), os.Environ())
			return fmt.Errorf("start kubectl, which `make build` puts beside berth, as %s: %w", program, err)
		},
	}
}

// setUpKubectlEnv has the environment name the cluster that --data-dir means, also for what needs none: nothing may reach
// another by mistake. With --kubeconfig the person has named one, and kubectl heeds that more.
func setUpKubectlEnv(cmd *cobra.Command, args []string) (up.Layout, error) {
	need, find := needOf(args), layoutOf
	if need < needsKubeconfig {
		find = layoutWithoutState
	}
	layout, err := find(cmd)
	if err != nil || need == hasKubeconfigFlag {
		return layout, err
	}
	path := layout.AdminKubeconfig()
	if _, err := os.Stat(path); err != nil && need >= needsKubeconfig {
		return layout, fmt.Errorf("there is no cluster in %s: start one with `berth up`, or name one with --data-dir (%w)",
			layout.DataDir, err)
	}
	if _, err := os.Stat(layout.Socket()); err != nil && need >= needsCluster {
		fmt.Fprintf(os.Stderr, "berth: no cluster is running on %s; `berth up` starts it\n", layout.DataDir)
	}
	// Plug-ins get these too: kubectl-why finds the cluster's records by the directory.
	if err := errors.Join(os.Setenv("KUBECONFIG", path), os.Setenv(dataDirVariable, layout.DataDir)); err != nil {
		return layout, fmt.Errorf("point kubectl at the cluster: %w", err)
	}
	return layout, nil
}
