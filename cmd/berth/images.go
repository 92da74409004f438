package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/imagestore"
)

// imagesVersion is the version of the images' output for scripts.
const imagesVersion = "images.berth.dev/v1alpha1"

func newImages() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "images", Aliases: []string{"image"}, Short: "List, import, save, push and remove the images that Pods can use",
		Example: "  berth images\n  berth images -o json | jq -r '.items[].name'\n  docker save myapp:v1 | berth images import -",
		Args:    requireSubcommand,
		RunE:    func(cmd *cobra.Command, _ []string) error { return listImages(cmd, output) },
	}
	imagesOutput(cmd, &output)
	cmd.PersistentFlags().String("socket", "", "containerd's socket (default: the running cluster's)")
	cmd.AddCommand(newImagesList(), newImagesImport(), newImagesSave(), newImagesServe(), newImagesRemove())
	return cmd
}

// withStore opens the image store that the flags name and closes it after use.
func withStore(cmd *cobra.Command, use func(ctx context.Context, store *imagestore.Store) error) (err error) {
	socket, err := cmd.Flags().GetString("socket")
	if err != nil {
		return err
	}
	if socket == "" {
		layout, err := layoutOf(cmd)
		if err != nil {
			return err
		}
		socket = layout.ContainerdSocket()
		if _, err := os.Stat(socket); err != nil {
			return fmt.Errorf("no cluster is running on %s: start it with `berth up`, or name another with --data-dir (%w)",
				layout.DataDir, err)
		}
	}
	store, err := imagestore.Open(cmd.Context(), socket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return use(cmd.Context(), store)
}

func newImagesList() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the images", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return listImages(cmd, output) },
	}
	imagesOutput(cmd, &output)
	return cmd
}

func imagesOutput(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "", "output format: json or yaml")
}

func listImages(cmd *cobra.Command, output string) error {
	if err := checkOutput(output); err != nil {
		return err
	}
	return withStore(cmd, func(ctx context.Context, store *imagestore.Store) error {
		images, err := store.List(ctx)
		if err != nil {
			return err
		}
		if output != "" {
			return printAs(cmd, output, newList(imagesVersion, "Image", images))
		}
		table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
		fmt.Fprintln(table, "NAME\tDIGEST\tSIZE\tPLATFORMS")
		for _, image := range images {
			digest := strings.TrimPrefix(image.Digest, "sha256:")
			fmt.Fprintf(table, "%s\t%.12s\t%.1f MiB\t%s\n", image.Name, digest, float64(image.Size)/(1<<20),
				cmp.Or(strings.Join(image.Platforms, ","), "-"))
		}
		return table.Flush()
	})
}

func newImagesImport() *cobra.Command {
	options := imagestore.ImportOptions{MaxBytes: imagestore.DefaultMaxBytes}
	cmd := &cobra.Command{
		Use: "import FILE|DIR|-", Short: "Import an OCI layout or a docker archive, from a file, a directory or standard input",
		Example: "  docker save myapp:v1 | berth images import -\n  berth images import app.tar --name example.com/app:v2",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{fmt.Errorf("which archive? Give one file, or - for standard input: see %s --help", cmd.CommandPath())}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return withStore(cmd, func(ctx context.Context, store *imagestore.Store) (err error) {
				input := io.NopCloser(cmd.InOrStdin())
				if args[0] != "-" {
					if input, err = imagestore.FromPath(args[0]); err != nil {
						return err
					}
				}
				defer func() { err = errors.Join(err, input.Close()) }()
				imported, err := store.Import(ctx, input, options)
				if err != nil {
					return err
				}
				for _, image := range imported {
					fmt.Fprintf(cmd.OutOrStdout(), "imported %s\n", image.Name)
				}
				return nil
			})
		},
	}
	cmd.Flags().Var(&sizeFlag{&options.MaxBytes}, "max-size", "the most that the archive may have decompressed, and each image unpacked, such as 10Gi")
	cmd.Flags().StringVar(&options.Name, "name", "", "the image's name, for an archive of one image that has none or another")
	return cmd
}

func newImagesRemove() *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME…", Aliases: []string{"rm"}, Short: "Remove images",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{fmt.Errorf("which images? See %s", cmd.CommandPath()+" --help")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return withStore(cmd, func(ctx context.Context, store *imagestore.Store) error {
				var errs []error
				for _, name := range args {
					if err := store.Remove(ctx, name); err != nil {
						errs = append(errs, err)
						continue
					}
					fmt.Fprintf(cmd.OutOrStdout(), "removed %s\n", name)
				}
				return errors.Join(errs...)
			})
		},
	}
}

// sizeFlag is a flag whose value is a quantity of bytes, such as 10Gi.
type sizeFlag struct{ bytes *int64 }

// String implements pflag.Value.
func (f *sizeFlag) String() string {
	if f.bytes == nil {
		return ""
	}
	return resource.NewQuantity(*f.bytes, resource.BinarySI).String()
}

// Set implements pflag.Value.
func (f *sizeFlag) Set(text string) error {
	quantity, err := resource.ParseQuantity(text)
	if err != nil || quantity.Sign() <= 0 {
		return errors.New("want a size such as 10Gi")
	}
	*f.bytes = quantity.Value()
	return nil
}

// Type implements pflag.Value.
func (f *sizeFlag) Type() string { return "size" }
