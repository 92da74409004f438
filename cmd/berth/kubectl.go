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

// newKubectl returns the command that executes kubectl, a separate program beside berth: linked into berth, kubectl's
// initialization would cost every kubelet time and memory.
func newKubectl() *cobra.Command {
	return &cobra.Command{
		Use: "kubectl …", Short: "Run kubectl on the cluster", DisableFlagParsing: true,
		Long: "Runs kubectl with all its commands and flags. It uses berth's own cluster and ignores KUBECONFIG, unless\n" +
			"--kubeconfig is given. Commands that need no cluster, such as completion and version --client, work without one.",
		RunE: func(cmd *cobra.Command, args []string) error {
			layout, err := setUpKubectlEnv(cmd, args)
			if err != nil {
				return err
			}
			program := layout.Program(kubectlProgram)
			err = unix.Exec(program, append([]string{kubectlProgram}, args...), os.Environ())
			return fmt.Errorf("start kubectl (built by `make build`) as %s: %w", program, err)
		},
	}
}

// setUpKubectlEnv sets the environment to the cluster of --data-dir, also for commands that need none: no command may
// reach another cluster by mistake. --kubeconfig takes precedence in kubectl.
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
		return layout, noCluster(layout, err)
	}
	if _, err := os.Stat(layout.Socket()); err != nil && need >= needsCluster {
		fmt.Fprintf(os.Stderr, "berth: no cluster is running on %s; `berth up` starts it\n", layout.DataDir)
	}
	// Plugins inherit these: kubectl-why finds the cluster's records by the directory.
	if err := errors.Join(os.Setenv("KUBECONFIG", path), os.Setenv(dataDirVariable, layout.DataDir)); err != nil {
		return layout, fmt.Errorf("point kubectl at the cluster: %w", err)
	}
	return layout, nil
}
