package container

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// Checkpoint says what becomes of a container's state, and what of it may be saved.
type Checkpoint struct {
	// Images is the directory for CRIU's images, Work that for its log; empty for one that is removed afterwards.
	Images, Work, Parent string
	// Exit ends the container; else it runs on.
	Exit                                          bool
	OpenTCP, ExternalSockets, Terminal, FileLocks bool
	EmptyNamespaces                               []string
}

// checkpointLog is the file in the bundle that keeps CRIU's log of a checkpoint that failed.
const checkpointLog = "criu-dump.log"

// Checkpoint saves the state of the container's processes. It runs the program runc, whose work on a checkpoint takes much longer than
// its start: with the part of the library that calls CRIU, each process of each container would start later. The caller cannot
// interrupt it, because an interrupted checkpoint leaves the processes frozen.
func (c *Container) Checkpoint(bundle string, to Checkpoint) (err error) {
	work := to.Work
	if work == "" {
		if work, err = os.MkdirTemp(bundle, "criu-"); err != nil {
			return fmt.Errorf("checkpoint the container: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	}
	program := c.options.Runc
	if program == "" {
		program = "runc"
	}
	command := exec.Command(program, to.arguments(c.options.Root, c.id, work)...)
	out, err := command.CombinedOutput()
	if err == nil {
		return nil
	}
	saved := filepath.Join(bundle, checkpointLog)
	err = fmt.Errorf("checkpoint the container with %s: %w: %s", program, err, bytes.TrimSpace(out))
	if copyErr := copyFile(saved, filepath.Join(work, "dump.log")); copyErr != nil {
		if errors.Is(copyErr, os.ErrNotExist) { // CRIU was not reached
			return err
		}
		return errors.Join(err, copyErr)
	}
	return fmt.Errorf("%w (CRIU's log is %s)", err, saved)
}

func (to Checkpoint) arguments(root, id, work string) []string {
	args := []string{"--root", root, "checkpoint", "--image-path", to.Images, "--work-path", work}
	if to.Parent != "" {
		args = append(args, "--parent-path", to.Parent)
	}
	for _, option := range []struct {
		set  bool
		name string
	}{
		{!to.Exit, "--leave-running"}, {to.OpenTCP, "--tcp-established"}, {to.ExternalSockets, "--ext-unix-sk"},
		{to.Terminal, "--shell-job"}, {to.FileLocks, "--file-locks"},
	} {
		if option.set {
			args = append(args, option.name)
		}
	}
	for _, namespace := range to.EmptyNamespaces {
		args = append(args, "--empty-ns", namespace)
	}
	return append(args, id)
}

func copyFile(to, from string) (err error) {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	_, err = io.Copy(target, source)
	return err
}
