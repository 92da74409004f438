// Command dist makes the packages of Berth from built programs: deb, rpm, tar.gz, and their checksums.
package main

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/berth-dev/berth/packaging"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
}

func run() error {
	var config packaging.Config
	flag.StringVar(&config.Bin, "bin", "bin", "directory of the programs")
	flag.StringVar(&config.Reference, "reference", "", "directory that `berth reference` has written")
	flag.StringVar(&config.Arch, "arch", "amd64", "architecture of the programs")
	flag.StringVar(&config.Out, "out", "dist", "directory for the packages")
	formats := flag.String("formats", "", "which to make: deb, rpm, tar with commas between (default: all)")
	text := flag.String("version", "", "version, as hack/version.sh prints it")
	flag.Parse()
	config.Documents = flag.Args()
	if *formats != "" {
		config.Formats = strings.Split(*formats, ",")
	}
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("set SOURCE_DATE_EPOCH to the time of the source in seconds: %w", err)
	}
	config.Time = time.Unix(seconds, 0).UTC()
	if config.Version, err = packaging.ParseVersion(*text, config.Time); err != nil {
		return err
	}
	paths, err := packaging.Build(config)
	if err != nil {
		return err
	}
	for _, path := range paths {
		fmt.Println(path)
	}
	return packaging.WriteChecksums(config.Out)
}
