package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// modfile is the go.mod of this module with the copied source in place of the module.
func (o options) modfile() string { return filepath.Join(o.out, "go.mod") }

// copySource copies the module's source, because the go command does not let files of its cache be replaced, and returns the copy's directory.
// Unless envtest itself is to run, ours takes the place of its package. binaries.go stays: it is about downloads, which only tests of the
// package use.
func (o options) copySource(ctx context.Context, source string) (string, error) {
	target := filepath.Join(o.out, "source")
	if err := os.RemoveAll(target); err != nil {
		return "", err
	}
	if err := os.CopyFS(target, os.DirFS(source)); err != nil {
		return "", fmt.Errorf("copy the source of %s: %w", module, err)
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(o.out, name), data, 0o644); err != nil {
			return "", err
		}
	}
	edit := exec.CommandContext(ctx, "go", "mod", "edit", "-replace", module+"="+target, o.modfile())
	if out, err := edit.CombinedOutput(); err != nil {
		return "", fmt.Errorf("replace %s by its copy: %w: %s", module, err, out)
	}
	if o.upstream != "" {
		return target, nil
	}
	return target, replacePackage(filepath.Join(target, "pkg/envtest"), "overlay/envtest.go")
}

// replacePackage replaces the files of the package in dir, but for its tests and binaries.go, by one file.
func replacePackage(dir, file string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return err
	}
	var errs []error
	for _, file := range files {
		if name := filepath.Base(file); !strings.HasSuffix(name, "_test.go") && name != "binaries.go" {
			errs = append(errs, os.Remove(file))
		}
	}
	data, err := os.ReadFile(file)
	errs = append(errs, err, os.WriteFile(filepath.Join(dir, "envtest.go"), data, 0o644))
	return errors.Join(append(errs, cut(filepath.Join(dir, "envtest_test.go"), `	Describe("Binary Path Handling"`, "\n\t})\n"))...)
}

// cut removes the part of a file that begins and ends with the texts: two specs of the paths of etcd and kube-apiserver, which do not
// compile because a whole cluster has no such paths.
func cut(file, begin, end string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(data), begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		return fmt.Errorf("%s has no %q: this version of %s needs another cut", file, begin, module)
	}
	return os.WriteFile(file, []byte(before+after), 0o644)
}
