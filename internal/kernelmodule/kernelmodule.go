// Package kernelmodule finds and loads modules of the kernel that are missing.
package kernelmodule

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Module is a module of the kernel.
type Module struct {
	// Name is that of the module.
	Name string
	// Feature is a file that exists if the kernel has what the module provides, whether it is loaded or built in, and
	// Filesystem is the file system that it provides. If both are empty, the kernel's lists of modules decide.
	Feature, Filesystem string
	// Without says what does not work without the module.
	Without string
}

// builtin returns the path of the list of modules that are built into the running kernel.
func builtin() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return ""
	}
	return filepath.Join("/lib/modules", unix.ByteSliceToString(name.Release[:]), "modules.builtin")
}

// IsMissing returns whether the module is neither loaded nor built in. It changes nothing. If that cannot be found out, as
// in a container without the kernel's files, the module counts as present.
func (m Module) IsMissing() bool { return m.isMissing("/sys/module", builtin()) }

func (m Module) isMissing(loadedDir, builtinFile string) bool {
	if _, err := os.Stat(filepath.Join(loadedDir, m.Name)); err == nil {
		return false
	}
	if m.Feature != "" {
		_, err := os.Stat(m.Feature)
		return errors.Is(err, os.ErrNotExist)
	}
	if m.Filesystem != "" {
		list, err := os.ReadFile("/proc/filesystems")
		return err == nil && !strings.Contains(string(list), "\t"+m.Filesystem+"\n")
	}
	list, err := os.ReadFile(builtinFile)
	return err == nil && !strings.Contains(string(list), "/"+m.Name+".ko")
}

// Load loads the module with the program modprobe.
func (m Module) Load(ctx context.Context) error { return m.modprobe(ctx) }

// CheckLoadable returns an error if Load would fail. It changes nothing.
func (m Module) CheckLoadable(ctx context.Context) error { return m.modprobe(ctx, "--dry-run") }

func (m Module) modprobe(ctx context.Context, options ...string) error {
	output, err := exec.CommandContext(ctx, "modprobe", append(options, m.Name)...).CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("modprobe %s: there is no program modprobe", m.Name)
	}
	if output = bytes.TrimSpace(output); err != nil && len(output) > 0 {
		return fmt.Errorf("modprobe %s: %w: %s", m.Name, err, bytes.ReplaceAll(output, []byte("\n"), []byte("; ")))
	}
	if err != nil {
		return fmt.Errorf("modprobe %s: %w", m.Name, err)
	}
	return nil
}
