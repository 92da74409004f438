package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/berth-dev/berth/imagestore"
)

func newImagesSave() *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use: "save [NAME…] --output FILE", Aliases: []string{"bundle"}, Short: "Save images to a file for machines without network: all, or those named",
		Long: "Writes images with their content for this machine's platform to an archive: an OCI layout that `berth images import`\n" +
			"reads on another machine, as do docker load and other tools. Without names it has all images but the cluster's own.",
		Example: "  berth images save -o cluster.tar\n  berth images save example.com/app:v2 -o - | ssh other berth images import -",
		RunE: func(cmd *cobra.Command, names []string) error {
			if to == "" {
				return usageError{fmt.Errorf("where to? Give --output FILE, or --output - for standard output: see %s --help", cmd.CommandPath())}
			}
			if out, isFile := cmd.OutOrStdout().(*os.File); to == "-" && isFile && term.IsTerminal(int(out.Fd())) {
				return usageError{errors.New("--output -: standard output is a terminal: redirect it to a file or a program")}
			}
			return withStore(cmd, func(ctx context.Context, store *imagestore.Store) error {
				saved, err := saveImages(ctx, cmd, store, to, names)
				if err != nil {
					return err
				}
				for _, name := range saved {
					fmt.Fprintf(cmd.ErrOrStderr(), "saved %s\n", name)
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVarP(&to, "output", "o", "", "`file` to write, replaced once it is complete; -: standard output")
	return cmd
}

// saveImages writes the archive to a file, or to standard output.
func saveImages(ctx context.Context, cmd *cobra.Command, store *imagestore.Store, to string, names []string) ([]string, error) {
	if to == "-" {
		return store.Export(ctx, cmd.OutOrStdout(), names...)
	}
	var saved []string
	err := replaceFile(to, func(w io.Writer) (err error) {
		saved, err = store.Export(ctx, w, names...)
		return err
	})
	return saved, err
}
