//go:build reference

package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/berth-dev/berth/internal/flagfile"
	"github.com/berth-dev/berth/version"
)

// addReference adds the command that writes what a package has about the command line. It is not in the product: only the build of
// packages has its tag.
func addReference(root *cobra.Command) {
	root.AddCommand(&cobra.Command{
		Use: "reference DIR", Hidden: true, Args: cobra.ExactArgs(1),
		Short: "Write man pages, completions and the template of the configuration into a directory",
		RunE:  func(_ *cobra.Command, args []string) error { return writeReference(args[0]) },
	})
}

func writeReference(dir string) error {
	if err := os.Unsetenv(dataDirVariable); err != nil { // a default
		return err
	}
	root := newRoot()
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("set SOURCE_DATE_EPOCH to the time of the source in seconds: %w", err)
	}
	date := time.Unix(seconds, 0).UTC()
	man := filepath.Join(dir, "man")
	if err := os.MkdirAll(man, 0o755); err != nil {
		return err
	}
	header := &doc.GenManHeader{Section: "1", Source: "Berth " + version.Berth, Manual: "Berth", Date: &date}
	root.DisableAutoGenTag = true
	if err := doc.GenManTree(root, header, man); err != nil {
		return fmt.Errorf("write man pages: %w", err)
	}
	var template bytes.Buffer
	up, _, err := root.Find([]string{"up"})
	if err != nil {
		return err
	}
	return errors.Join(
		flagfile.WriteTemplate(&template, up.LocalFlags(), slices.Collect(maps.Keys(notInFile()))),
		os.WriteFile(filepath.Join(dir, "config.yaml"), template.Bytes(), 0o644),
		root.GenBashCompletionFileV2(filepath.Join(dir, "berth.bash"), true),
		root.GenZshCompletionFile(filepath.Join(dir, "berth.zsh")),
		root.GenFishCompletionFile(filepath.Join(dir, "berth.fish"), true),
	)
}
