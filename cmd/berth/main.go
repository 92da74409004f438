// Command berth is a whole Kubernetes on one machine, and its node-and-storage half for any other cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/signals"
	"github.com/berth-dev/berth/internal/terminaltext"
	"github.com/berth-dev/berth/up"
	"github.com/berth-dev/berth/version"
)

// The exit codes of berth, besides those of signalExitCode. `berth kubectl` exits with kubectl's codes.
const (
	exitError = 1
	exitUsage = 2
)

// usageError is an error in the command line.
type usageError struct{ error }

func main() {
	contain.Install()
	os.Exit(run(signals.Context(), linkArgs(os.Args)))
}

// linkArgs turns `kubectl-why …` into `berth explain --plugin …` and `kubelet …` into `berth kubelet …`: links to berth have these
// names.
func linkArgs(argv []string) []string {
	switch filepath.Base(argv[0]) {
	case pluginName:
		return append([]string{"explain", "--plugin"}, argv[1:]...)
	case kubeletName:
		return append([]string{kubeletName}, argv[1:]...)
	}
	return argv[1:]
}

func run(ctx context.Context, args []string) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(&interruptibleReader{Reader: os.Stdin, ctx: ctx})
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	var code exitCode
	if errors.As(err, &code) {
		return int(code)
	}
	if code, ok := interruptedExitCode(ctx, cmd, err); ok {
		return code
	}
	fmt.Fprintln(os.Stderr, "berth: "+terminaltext.Lines(err.Error()))
	var usage usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitError
}

// exitCode ends the program with this code without printing an error.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

const (
	dataDirFlag = "data-dir"
	// dataDirVariable is the environment variable that stands for --data-dir.
	dataDirVariable = "BERTH_DATA_DIR"
)

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "berth",
		Short: "A whole Kubernetes on one machine that explains why a Pod is not running yet",
		Long: "Berth takes a Pod and its PersistentVolumeClaim from manifest to a running process with its disk mounted,\n" +
			"on one machine with one command, and can explain at any time why a Pod is not running yet.",
		SilenceUsage:     true,
		SilenceErrors:    true,
		TraverseChildren: true,
		Version:          version.Berth,
		Args:             requireSubcommand,
		RunE:             showHelp,

		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return refuseDataDir(cmd) },
	}
	root.SetVersionTemplate("berth {{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.SetHelpCommand(newHelp())
	addClusterCommands(root, markService(newUp()), markService(newNode()), newToken(), newKubeconfig(), newExplain(), markService(newPage()),
		newDoctor(), newKubectl(), newImages(), newSnapshot(), newUpgrade())
	root.AddCommand(markService(newKubelet()), markService(newControllers()), markService(newCSIDriver()), markService(newCSIProvisioner()),
		newRun(), newPool(), newVersion(), newSetup(), newNodeProcess())
	addReference(root)
	root.InitDefaultCompletionCmd()
	if shells, _, err := root.Find([]string{"completion"}); err == nil {
		shells.Args, shells.RunE = requireSubcommand, showHelp
	}
	return root
}

// addClusterCommands adds the commands that work on the cluster of a data directory. --data-dir may also precede the
// command's name; for kubectl it must, because kubectl parses everything that follows its name.
func addClusterCommands(root *cobra.Command, commands ...*cobra.Command) {
	dir := os.Getenv(dataDirVariable)
	if dir == "" {
		dir = up.DefaultDataDir
	}
	var names []string
	for _, cmd := range commands {
		cmd.PersistentFlags().String(dataDirFlag, dir, "the cluster's directory (env "+dataDirVariable+")")
		names = append(names, cmd.Name())
	}
	root.Flags().String(dataDirFlag, dir, "the cluster's directory, for "+strings.Join(names, ", ")+" (env "+dataDirVariable+")")
	root.AddCommand(commands...)
}

// refuseDataDir rejects --data-dir before a command that does not use it; after such a command it is an unknown flag.
func refuseDataDir(cmd *cobra.Command) error {
	if before := cmd.Root().Flags().Lookup(dataDirFlag); before != nil && before.Changed && cmd.Flag(dataDirFlag) == nil {
		return flagError(cmd, errors.New("unknown flag: --"+dataDirFlag))
	}
	return nil
}

// dataDir returns --data-dir, or what the environment or the machine's configuration has in its place. An empty value is an error, not the default: it usually is an unset shell variable.
func dataDir(cmd *cobra.Command) (string, error) {
	flag := cmd.Flag(dataDirFlag)
	if flag == nil {
		return "", fmt.Errorf("%s has no --%s", cmd.CommandPath(), dataDirFlag)
	}
	if !flag.Changed {
		flag = cmd.Root().Flag(dataDirFlag)
	}
	// `berth up` has read the configuration that it was given.
	if !flag.Changed && os.Getenv(dataDirVariable) == "" && cmd.Flag(printConfigFlag) == nil {
		if dir, err := fileDataDir(); err != nil || dir != "" {
			return dir, err
		}
	}
	dir := flag.Value.String()
	if dir == "" {
		return "", usageError{errors.New("--data-dir is empty: name a directory, or leave the flag out")}
	}
	return dir, nil
}

// layoutOf returns the layout of the cluster that --data-dir names.
func layoutOf(cmd *cobra.Command) (up.Layout, error) {
	dir, err := dataDir(cmd)
	if err != nil {
		return up.Layout{}, err
	}
	config, err := up.ApplySavedState(up.Config{DataDir: dir}, func(string) bool { return false })
	if err != nil {
		return up.Layout{}, err
	}
	return complete(config)
}

// layoutWithoutState returns the layout without reading the cluster's saved state, for users that may not read it, and for commands that
// need nothing of the cluster. Its paths are correct, unless the user may not read which directory the machine's configuration names;
// settings that the state overrides have their defaults.
func layoutWithoutState(cmd *cobra.Command) (up.Layout, error) {
	dir, err := dataDir(cmd)
	if errors.Is(err, fs.ErrPermission) {
		dir, err = up.DefaultDataDir, nil
	}
	if err != nil {
		return up.Layout{}, err
	}
	return complete(up.Config{DataDir: dir})
}

func complete(config up.Config) (up.Layout, error) {
	config, err := config.Complete()
	if err != nil {
		return up.Layout{}, err
	}
	return up.NewLayout(config)
}
