package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"

	"github.com/berth-dev/berth/conformance/internal/oci"
)

// runMirror is `conformance mirror`: it serves the images of a layout as a registry on loopback and configures a containerd
// to pull them from it, until ctx ends.
func runMirror(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("conformance mirror", flag.ContinueOnError)
	layout := flags.String("layout", "", "directory of the OCI layout")
	registries := flags.String("registries", "", "containerd's directory for the configuration of registries")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *layout == "" || *registries == "" || flags.NArg() > 0 {
		return errors.New("mirror: --layout and --registries are required, and there are no arguments")
	}
	stop, err := serveMirror(oci.Open(*layout), netip.AddrFrom4([4]byte{127, 0, 0, 1}), *registries)
	if err != nil {
		return err
	}
	fmt.Printf("serving the images of %s\n", *layout)
	<-ctx.Done()
	return stop()
}
