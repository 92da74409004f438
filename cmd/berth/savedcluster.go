package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/berth-dev/berth/internal/shellword"
	"github.com/berth-dev/berth/up"
	"github.com/berth-dev/berth/up/freeze"
	"github.com/berth-dev/berth/up/removal"
	"github.com/berth-dev/berth/up/savedcluster"
	"github.com/berth-dev/berth/version"
)

const (
	// snapshotsFlag is the flag, and snapshotsVariable the environment variable, of the directory of saved clusters.
	snapshotsFlag     = "snapshots"
	snapshotsVariable = "BERTH_SNAPSHOTS"
	defaultSnapshots  = "/var/lib/berth-snapshots"
	// guardCommand lets a frozen cluster continue.
	guardCommand = "thaw-guard"
	// savedVersion is the version of the output for scripts.
	savedVersion = "snapshots.berth.dev/v1alpha1"
)

func newSnapshot() *cobra.Command {
	cmd := &cobra.Command{
		Use: "snapshot", Short: "Save a whole cluster with its disks, and restore it or start copies of it", Args: requireSubcommand, RunE: showHelp,
		Long: "Saves the cluster of --data-dir: its objects, the data of its volumes, its images and keys, as they are at one moment. A cluster that runs\n" +
			"stands still meanwhile: for a moment where the filesystem shares blocks between copies (XFS, Btrfs), else as long as copying takes. What is\n" +
			"saved is what a power failure at that moment would have left, and a copy starts as after one.\n\n" +
			"`berth up --from NAME` starts a cluster of its own from it, with new certificates and a new port. `berth snapshot restore` brings the cluster\n" +
			"itself back, with its certificates. Saved are files below --data-dir: not hostPath volumes elsewhere, and not other nodes.\n" +
			"A saved cluster has all keys and Secrets of the cluster: only its owner can read it.",
		Example: "  berth snapshot save before-upgrade\n  berth snapshot restore before-upgrade\n  berth up --from before-upgrade --data-dir ~/fork --isolated",
	}
	addSnapshotsFlag(cmd)
	cmd.AddCommand(newSnapshotSave(), newSnapshotList(), newSnapshotRestore(), newSnapshotDelete(), newThawGuard())
	return cmd
}

func addSnapshotsFlag(cmd *cobra.Command) {
	dir := os.Getenv(snapshotsVariable)
	if dir == "" {
		dir = defaultSnapshots
	}
	cmd.PersistentFlags().String(snapshotsFlag, dir, "`directory` of saved clusters (env "+snapshotsVariable+"); on the filesystem of the clusters, blocks are shared where it can")
}

func savedClusters(cmd *cobra.Command) (savedcluster.Store, error) {
	dir, err := cmd.Flags().GetString(snapshotsFlag)
	return savedcluster.New(dir), err
}

func newSnapshotSave() *cobra.Command {
	return &cobra.Command{
		Use: "save NAME", Short: "Save the cluster, whether it runs or not", Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := savedClusters(cmd)
			if err != nil {
				return err
			}
			layout, err := layoutOf(cmd)
			if err != nil {
				return err
			}
			running, err := layout.CheckSavable()
			if err != nil {
				return err
			}
			info, err := store.Save(cmd.Context(), savedcluster.Info{
				Name: args[0], DataDir: layout.DataDir, Node: layout.NodeName, Berth: version.Berth, Kubernetes: version.Kubernetes, Running: running,
			}, func(ctx context.Context) (func() error, time.Duration, error) {
				return layout.Standstill(ctx, thawGuard)
			})
			if err != nil {
				return err
			}
			how := "it was stopped"
			if info.Running {
				how = "it stood still for " + info.Standstill.Round(time.Millisecond).String()
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Saved %s: %s in %d files, %s of it shared with the cluster; %s.\n", info.Name, bytesText(info.Bytes), info.Files,
				bytesText(info.Shared), how)
			return nil
		},
	}
}

// oneName demands the name of a saved cluster.
func oneName(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usageError{fmt.Errorf("one saved cluster at a time: unexpected argument %q", args[1])}
	}
	return someNames(cmd, args)
}

// someNames demands names of saved clusters.
func someNames(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usageError{fmt.Errorf("no name of a saved cluster given: see %s --help", cmd.CommandPath())}
	}
	return nil
}

// thawGuard returns the command of the process that lets a frozen cluster continue.
func thawGuard(target freeze.Target) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", append([]string{"snapshot", guardCommand}, target.Args()...)...)
	cmd.Stderr = os.Stderr
	return cmd
}

func newThawGuard() *cobra.Command {
	return &cobra.Command{
		Use: guardCommand, Hidden: true, Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			target, err := freeze.ParseArgs(args)
			if err != nil {
				return usageError{fmt.Errorf("`berth snapshot save` runs this command: %w", err)}
			}
			return freeze.RunGuard(os.Stdin, target)
		},
	}
}

func newSnapshotList() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "list", Short: "List saved clusters", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			store, err := savedClusters(cmd)
			if err != nil {
				return err
			}
			all, listErr := store.List()
			if output != "" {
				return errors.Join(printAs(cmd, output, newList(savedVersion, "Snapshot", all)), listErr)
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
			fmt.Fprintln(table, "NAME\tAGE\tSIZE\tKUBERNETES\tDATA DIRECTORY")
			for _, info := range all {
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", info.Name, duration.HumanDuration(time.Since(info.Created)), bytesText(info.Bytes), info.Kubernetes, info.DataDir)
			}
			return errors.Join(table.Flush(), listErr)
		},
	}
	imagesOutput(cmd, &output)
	return cmd
}

func newSnapshotDelete() *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME…", Short: "Delete saved clusters", Args: someNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := savedClusters(cmd)
			if err != nil {
				return err
			}
			var errs []error
			for _, name := range args {
				if err := store.Delete(name); err != nil {
					errs = append(errs, err)
					continue
				}
				fmt.Fprintf(cmd.OutOrStdout(), "Deleted %s.\n", name)
			}
			return errors.Join(errs...)
		},
	}
}

func newSnapshotRestore() *cobra.Command {
	replace := false
	cmd := &cobra.Command{
		Use: "restore NAME", Short: "Bring a saved cluster back to --data-dir, with its certificates", Args: oneName,
		Long: "Brings a saved cluster back to --data-dir. A cluster that is there has to be stopped, and is deleted: --replace confirms that.",
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := savedClusters(cmd)
			if err != nil {
				return err
			}
			if _, err := store.Get(args[0]); err != nil {
				return err
			}
			layout, err := replacedLayout(cmd, replace)
			if err != nil {
				return err
			}
			if exists, err := isNotEmpty(layout.DataDir); err != nil {
				return err
			} else if exists && !replace {
				return usageError{fmt.Errorf("--data-dir %s exists: --replace deletes what is in it; `berth snapshot save` keeps it", layout.DataDir)}
			}
			err = layout.WhileStopped(cmd.Context(), func() error {
				return store.Replace(cmd.Context(), args[0], layout.DataDir, func(copied string, info savedcluster.Info) error {
					return up.RecordOrigin(copied, info.DataDir)
				})
			})
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Restored %s. Start it: berth up --data-dir %s\n", args[0], shellword.Quote(layout.DataDir))
			return nil
		},
	}
	cmd.Flags().BoolVar(&replace, "replace", false, "delete the cluster in --data-dir")
	return cmd
}

// replacedLayout returns the layout of the cluster that a saved one replaces. A damaged state does not keep it from being replaced, as it
// does not keep it from being deleted by --reset.
func replacedLayout(cmd *cobra.Command, replace bool) (up.Layout, error) {
	layout, err := layoutOf(cmd)
	if err != nil && replace && !errors.Is(err, fs.ErrPermission) {
		return layoutWithoutState(cmd)
	}
	return layout, err
}

// isNotEmpty reports whether a data directory exists and has more than a new file system has.
func isNotEmpty(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return slices.ContainsFunc(entries, func(entry fs.DirEntry) bool { return entry.Name() != removal.LostAndFound }), err
}

// fork makes --data-dir a copy of a saved cluster.
func (f *upFlags) fork(cmd *cobra.Command) error {
	dir, err := dataDir(cmd)
	if err != nil {
		return err
	}
	config, err := up.Config{DataDir: dir}.Complete()
	if err != nil {
		return usageError{err}
	}
	store, err := savedClusters(cmd)
	if err != nil {
		return err
	}
	if exists, err := isNotEmpty(config.DataDir); err != nil {
		return err
	} else if exists {
		return fmt.Errorf("--from %s: --data-dir %s exists: start what is there without --from, choose another directory, or delete it with --reset",
			f.from, config.DataDir)
	}
	port := f.config.APIPort
	if port == 0 || !cmd.Flags().Changed("api-port") {
		if port, err = up.FreePort(); err != nil {
			return err
		}
	}
	return store.Copy(cmd.Context(), f.from, config.DataDir, func(copied string, info savedcluster.Info) error {
		return up.PrepareFork(copied, info.DataDir, port)
	})
}

// bytesText is a size for people.
func bytesText(size int64) string {
	units := strings.Fields("B KiB MiB GiB TiB")
	value, unit := float64(size), 0
	for value >= 999.5 && unit < len(units)-1 { // with four digits it would have an exponent
		value, unit = value/1024, unit+1
	}
	return fmt.Sprintf("%.3g %s", value, units[unit])
}
