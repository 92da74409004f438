package berthtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/berth-dev/berth/imagestore"
)

// LoadImage makes an image available to Pods under the name, without a registry. source is one of
//
//   - a package of a Go program, as `go build` takes it (./cmd/app, example.com/app): it is built without cgo
//   - a static program: a file
//   - an archive of `docker save`, or an OCI archive: a file
//   - a directory with an OCI layout
//
// An image of a program has it as its entrypoint and nothing else. Pods need imagePullPolicy IfNotPresent or Never, or a tag other
// than latest.
func (c *Cluster) LoadImage(name, source string) {
	c.t.Helper()
	if err := c.loadImage(c.t.Context(), name, source); err != nil {
		c.t.Fatalf("berthtest: load image %s from %s: %v", name, source, err)
	}
}

func (c *Cluster) loadImage(ctx context.Context, name, source string) error {
	kind, err := kindOf(source)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(c.running.cluster.Dir(), "image")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	archive := source
	switch kind {
	case goPackage:
		program := filepath.Join(dir, "program")
		if err := buildProgram(ctx, source, program); err != nil {
			return err
		}
		source = program
		fallthrough
	case program:
		archive = filepath.Join(dir, "image.tar")
		if err := writeImage(name, path.Join("/", path.Base(strings.SplitN(name, ":", 2)[0])), source, archive); err != nil {
			return err
		}
	}
	_, err = c.running.cluster.Run(ctx, "images", "import", archive, "--name", name)
	return err
}

// sourceKind is what an image is made from.
type sourceKind int

const (
	goPackage sourceKind = iota
	program
	archive // or a layout
)

// kindOf finds out what the source is.
func kindOf(source string) (sourceKind, error) {
	info, err := os.Stat(source)
	if errors.Is(err, fs.ErrNotExist) {
		return goPackage, nil // by its import path; go build says so if it is none
	}
	if err != nil {
		return 0, err
	}
	if info.IsDir() {
		if _, err := os.Stat(filepath.Join(source, "oci-layout")); err == nil {
			return archive, nil
		}
		return goPackage, nil
	}
	file, err := os.Open(source)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	magic := make([]byte, 4)
	if _, err := file.Read(magic); err == nil && string(magic) == "\x7fELF" {
		return program, nil
	}
	return archive, nil
}

// buildProgram builds a static program.
func buildProgram(ctx context.Context, pkg, out string) error {
	if info, err := os.Stat(pkg); err == nil && info.IsDir() && !filepath.IsAbs(pkg) && !strings.HasPrefix(pkg, ".") {
		pkg = "./" + pkg
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w: %s", pkg, err, output)
	}
	return nil
}

// writeImage writes an archive with an image of the program.
func writeImage(name, target, program, archive string) error {
	binary, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	image, err := imagestore.Build(imagestore.BuildSpec{Name: name, Binary: binary, Path: target})
	if err != nil {
		return err
	}
	file, err := os.Create(archive)
	if err != nil {
		return err
	}
	return errors.Join(imagestore.WriteTar(file, image), file.Close())
}
