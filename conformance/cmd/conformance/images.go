package main

import (
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/berth-dev/berth/conformance/internal/kubeadmimages"
	"github.com/berth-dev/berth/conformance/internal/oci"
	"github.com/berth-dev/berth/conformance/internal/stubimages"
)

// runImages is `conformance images`: it writes all stub images as an OCI layout, or, with --programs, the images that kubeadm names and
// those of the suite's programs that a cluster of kubeadm is tried with.
func runImages(args []string) error {
	flags := flag.NewFlagSet("conformance images", flag.ContinueOnError)
	bin := flags.String("bin-dir", "", "the directory of make build, with conformance/ of build.sh in it")
	programs := flags.String("programs", "", "directory with the control plane's programs, for the images of kubeadm, whose names are the arguments")
	only := flags.String("only", "", "without --programs: write only the images whose names match this regular expression")
	out := flags.String("out", "", "directory of the OCI layout; it is replaced")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *bin == "" || *out == "" || (*programs == "") != (flags.NArg() == 0) {
		return errors.New("images: --bin-dir and --out are required, and --programs together with the images' names; build-kubeadm.sh gives them")
	}
	sources, err := stubSources(*bin)
	if err != nil {
		return err
	}
	stubs, err := sources.Images()
	if err != nil {
		return err
	}
	if *programs == "" {
		return writeMatching(*out, *only, stubs)
	}
	images, err := kubeadmimages.Sources{
		Programs: *programs, DNS: filepath.Join(*bin, "conformance", "programs", "coredns"), Pause: filepath.Join(*bin, "images", "pause"), Root: "/",
	}.Images(flags.Args())
	if err != nil {
		return err
	}
	for _, image := range stubs {
		if image.Name == stubimages.Busybox() {
			images = append(images, image)
		}
	}
	return oci.Write(*out, images)
}

// writeMatching writes the images whose names match the expression.
func writeMatching(dir, only string, images []oci.Image) error {
	name, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	images = slices.DeleteFunc(images, func(image oci.Image) bool { return !name.MatchString(image.Name) })
	if len(images) == 0 {
		return fmt.Errorf("--only %s: no stub image has such a name", only)
	}
	return oci.Write(dir, images)
}
