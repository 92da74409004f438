package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// countFile is the counter's file in the data directory: a decimal number and a line end.
const countFile = "count"

// counter is a number in a file. The file is the only state, so that what is on the volume and what is shown
// cannot differ; it is safe for concurrent use within one process.
type counter struct {
	dir string

	mu sync.Mutex // serialises read-then-write of the file
}

func (c *counter) path() string { return filepath.Join(c.dir, countFile) }

// Value reads the number; 0 if the file does not exist yet.
func (c *counter) Value() (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read()
}

// Add counts one visit and returns the new number once it is durable on the volume. A file that cannot be parsed is an
// error and stays unchanged, so that its data is not lost.
func (c *counter) Add() (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, err := c.read()
	if err != nil {
		return 0, err
	}
	n++
	if n == 0 {
		return 0, fmt.Errorf("count file %s: the count is at its largest value", c.path())
	}
	if err := c.write(n); err != nil {
		return 0, fmt.Errorf("write count file %s: %w", c.path(), err)
	}
	return n, nil
}

// Check reports whether a visit could be counted now: the file is readable and its directory writable.
func (c *counter) Check() error {
	if _, err := c.Value(); err != nil {
		return err
	}
	file, err := os.CreateTemp(c.dir, ".check-*")
	if err != nil {
		return fmt.Errorf("write to data directory %s: %w", c.dir, err)
	}
	return errors.Join(file.Close(), os.Remove(file.Name()))
}

func (c *counter) read() (uint64, error) {
	data, err := os.ReadFile(c.path())
	if errors.Is(err, fs.ErrNotExist) {
		// A missing directory is a missing volume, not a count of 0.
		if _, err := os.Stat(c.dir); err != nil {
			return 0, fmt.Errorf("read data directory: %w", err)
		}
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read count file: %w", err)
	}
	n, err := strconv.ParseUint(strings.TrimSuffix(string(data), "\n"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("count file %s holds %.40q, not a number: repair or remove it", c.path(), data)
	}
	return n, nil
}

// write replaces the file as a whole: a crash leaves the old number or the new one, never half of it.
func (c *counter) write(n uint64) (err error) {
	file, err := os.CreateTemp(c.dir, ".count-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}()
	_, err = fmt.Fprintln(file, n)
	if err == nil {
		err = file.Sync()
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), c.path()); err != nil {
		return err
	}
	dir, err := os.Open(c.dir)
	if err != nil {
		return nil // The number is in place; only the directory could not be flushed early.
	}
	defer dir.Close()
	return dir.Sync()
}
