// Package corrupt damages state files for tests in the ways that disks, crashes and people do.
package corrupt

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Way is one way to damage a file.
type Way struct {
	Name string
	// Do damages the file at path, which exists.
	Do func(path string) error
}

// Ways returns all ways. A file whose mode forbids to read it is only damaged for a process without root's capabilities.
func Ways() []Way {
	return []Way{
		{"empty", func(path string) error { return os.Truncate(path, 0) }},
		{"half", func(path string) error {
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			return os.Truncate(path, info.Size()/2)
		}},
		{"one bit", func(path string) error {
			data, err := os.ReadFile(path)
			if err != nil || len(data) == 0 {
				return err
			}
			data[0] ^= 1 << 6 // the first byte is a part of the syntax in every format
			return os.WriteFile(path, data, 0o600)
		}},
		{"zeros", func(path string) error { return os.WriteFile(path, make([]byte, 4096), 0o600) }},
		{"foreign", func(path string) error {
			return os.WriteFile(path, []byte("{\"kind\":\"Something\",\"else\":[1,2,3]}\n"), 0o600)
		}},
		{"newer", func(path string) error {
			return os.WriteFile(path, []byte("{\"format\":99,\"apiVersion\":\"v99\",\"entries\":[[]]}\n"), 0o600)
		}},
		{"huge", func(path string) error { return os.Truncate(path, 1<<40) }}, // sparse
		{"directory", func(path string) error {
			return errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(path, "child"), 0o700))
		}},
		{"link to nothing", func(path string) error {
			return errors.Join(os.Remove(path), os.Symlink("/nonexistent/file", path))
		}},
		{"link to another file", func(path string) error {
			return errors.Join(os.Remove(path), os.Symlink("/proc/version", path))
		}},
		{"no permission", func(path string) error { return os.Chmod(path, 0) }},
		{"missing", os.Remove},
	}
}

// Each runs a subtest for every way: prepare makes the state and returns the file's path, check starts the owner of the
// file again and proves what it must.
func Each(t *testing.T, prepare func(t *testing.T) string, check func(t *testing.T, way, path string)) {
	t.Helper()
	for _, way := range Ways() {
		t.Run(way.Name, func(t *testing.T) {
			path := prepare(t)
			require.NoError(t, way.Do(path))
			check(t, way.Name, path)
		})
	}
}
