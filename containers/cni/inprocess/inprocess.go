// Package inprocess runs a CNI plugin in the process of another one.
package inprocess

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"
)

const commandVariable = "CNI_COMMAND"

// Run calls a plugin with the command and the configuration, as if its program were executed, and returns what it prints. Its other
// arguments are those of this process. It changes the process's standard input and output meanwhile, so that one plugin runs at a time.
func Run(plugin skel.CNIFuncs, versions version.PluginInfo, command string, config []byte) (_ []byte, err error) {
	input, err := memoryFile("input", config)
	if err != nil {
		return nil, err
	}
	defer input.Close() //nolint:errcheck // only read from
	output, err := memoryFile("output", nil)
	if err != nil {
		return nil, err
	}
	defer output.Close() //nolint:errcheck // it has been read
	stdin, stdout := os.Stdin, os.Stdout
	os.Stdin, os.Stdout = input, output
	defer func() { os.Stdin, os.Stdout = stdin, stdout }()
	previous := os.Getenv(commandVariable)
	if err := os.Setenv(commandVariable, command); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.Setenv(commandVariable, previous)) }()
	if failed := skel.PluginMainFuncsWithError(plugin, versions, ""); failed != nil { // a nil pointer in the interface would not be nil
		return nil, failed
	}
	if _, err := output.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read what the plugin printed: %w", err)
	}
	printed, err := io.ReadAll(output)
	if err != nil {
		return nil, fmt.Errorf("read what the plugin printed: %w", err)
	}
	return printed, nil
}

// memoryFile is a file with the content, at its begin.
func memoryFile(name string, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory for a plugin's %s: %w", name, err)
	}
	file := os.NewFile(uintptr(fd), name)
	if _, err := file.Write(content); err != nil {
		return nil, errors.Join(fmt.Errorf("write a plugin's %s: %w", name, err), file.Close())
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, errors.Join(fmt.Errorf("write a plugin's %s: %w", name, err), file.Close())
	}
	return file, nil
}
