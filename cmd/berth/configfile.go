package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-dev/berth/internal/flagfile"
	"github.com/berth-dev/berth/up"
)

const (
	configFlag      = "config"
	printConfigFlag = "print-config"
	// defaultConfigFile is read if it exists and --config names no other.
	defaultConfigFile = "/etc/berth/config.yaml"
)

// notInFile are the flags of `berth up` that no file may set, with what to do instead.
func notInFile() map[string]string {
	return map[string]string{
		configFlag:      "give --config on the command line",
		printConfigFlag: "give --print-config on the command line",
		"reset":         "give --reset on the command line, once: in a file it would delete the cluster at each start",
		"from":          "give --from on the command line, once: a cluster begins as a copy only at its first start",
		"help":          "see berth up --help",
	}
}

// fileFlags say which file has the flags that the command line does not have.
type fileFlags struct {
	path  string
	print bool
	// given are the flags of the command line, lines those of the file, with their lines.
	given map[string]bool
	lines map[string]int
}

func (f *fileFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.path, configFlag, defaultConfigFile, "`file` with flags of this command as YAML (api-port: 6443), which those of the command line precede;\n"+
		"the default need not exist, and '' reads none")
	flags.BoolVar(&f.print, printConfigFlag, false, "print what each flag is and where that is from, as such a file, and start nothing")
}

// apply sets the flags that the file has and the command line has not.
func (f *fileFlags) apply(cmd *cobra.Command) error {
	f.given = map[string]bool{}
	cmd.Flags().VisitAll(func(flag *pflag.Flag) { f.given[flag.Name] = flag.Changed })
	if before := cmd.Root().Flag(dataDirFlag); before != nil && before.Changed || os.Getenv(dataDirVariable) != "" {
		f.given[dataDirFlag] = true
	}
	if f.path == "" {
		return nil
	}
	file, err := flagfile.Read(f.path)
	if errors.Is(err, fs.ErrNotExist) && !f.given[configFlag] {
		return nil
	}
	if errors.Is(err, fs.ErrPermission) && !f.given[configFlag] && !f.print {
		return nil // this is not root, which the start says
	}
	if err != nil {
		return usageError{fmt.Errorf("--config: %w", err)}
	}
	// A flag that another place has precedence for counts as set while the file is applied.
	dir := cmd.Flags().Lookup(dataDirFlag)
	changed := dir.Changed
	dir.Changed = f.given[dataDirFlag]
	defer func() { dir.Changed = changed || f.lines[dataDirFlag] > 0 }()
	f.lines, err = file.Apply(cmd.Flags(), flagfile.Options{Refused: notInFile(), Describe: describeFlagError})
	if err != nil {
		return usageError{err}
	}
	return nil
}

// show prints the flags as a file, with where each is from. remembered are those that the cluster has kept.
func (f *fileFlags) show(cmd *cobra.Command, layout up.Layout, remembered map[string]bool) error {
	from := func(flag *pflag.Flag) string {
		line, inFile := f.lines[flag.Name]
		switch {
		case f.given[flag.Name] && !flag.Changed:
			return "before the command, or $" + dataDirVariable
		case f.given[flag.Name]:
			return "command line"
		case inFile:
			return fmt.Sprintf("%s:%d", f.path, line)
		case remembered[flag.Name]:
			return "of the cluster in " + layout.DataDir
		}
		return "default"
	}
	if err := cmd.Flags().Lookup(dataDirFlag).Value.Set(layout.DataDir); err != nil {
		return err
	}
	return flagfile.Write(cmd.OutOrStdout(), cmd.Flags(), slices.Sorted(maps.Keys(notInFile())), from)
}

// fileDataDir returns the data directory that the machine's configuration names; empty if it names none. Commands of the cluster
// that `berth up` runs with that configuration use it.
func fileDataDir() (string, error) {
	file, err := flagfile.Read(defaultConfigFile)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if errors.Is(err, fs.ErrPermission) {
		return "", fmt.Errorf("find the cluster's directory (use sudo, or name it with --data-dir): %w", err)
	}
	if err != nil {
		return "", fmt.Errorf("find the cluster's directory (or name it with --data-dir): %w", err)
	}
	dir, exists, err := file.Scalar(dataDirFlag)
	if err == nil && exists && !filepath.IsAbs(dir) {
		err = fmt.Errorf("%s: data-dir %q: want an absolute path", defaultConfigFile, dir)
	}
	return dir, err
}
