// Package kerneldefaults has the sysctls that a kubelet wants of its machine: that memory is given out without a reserve, that the
// kernel panics, and boots again, rather than runs on after an error of its own, and that many Pods can have keyrings.
package kerneldefaults

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Root is where the kernel has its sysctls.
const Root = "/proc/sys"

// wanted returns the sysctls by their paths below Root.
func wanted() map[string]string {
	return map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	}
}

// Check returns an error that names each sysctl below root with another value.
func Check(root string) error {
	return each(root, func(path, name, has, want string) error {
		return fmt.Errorf("sysctl %s is %s: want %s", name, has, want)
	})
}

// Set sets each sysctl below root that has another value. The error names those that cannot be set.
func Set(root string) error {
	return each(root, func(path, name, _, want string) error {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			return fmt.Errorf("set sysctl %s to %s: %w", name, want, err)
		}
		return nil
	})
}

// each calls fn for each sysctl that has another value, and joins the errors.
func each(root string, fn func(path, name, has, want string) error) error {
	var errs []error
	all := wanted()
	for _, below := range slices.Sorted(maps.Keys(all)) {
		path, name := filepath.Join(root, below), strings.ReplaceAll(below, "/", ".")
		content, err := os.ReadFile(path)
		if err != nil {
			errs = append(errs, fmt.Errorf("read sysctl %s: %w", name, err))
			continue
		}
		if has := strings.TrimSpace(string(content)); has != all[below] {
			errs = append(errs, fn(path, name, has, all[below]))
		}
	}
	return errors.Join(errs...)
}
