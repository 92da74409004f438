package disposable

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/berth-dev/berth/internal/filelock"
	"github.com/berth-dev/berth/up/isolate"
)

// Names in the directory of a cluster. They are short, because paths of sockets are.
const (
	ownerLock = "owner"
	dataDir   = "data"
)

// directory is where a cluster has its files.
type directory struct {
	path string
	lock *os.File // held as long as this process uses the directory
}

// Root is the directory of this user's clusters.
func Root() string { return filepath.Join(os.TempDir(), "berthtest-"+strconv.Itoa(os.Getuid())) }

// makeDirectory makes a directory for a cluster below root, and removes those of processes that were killed.
func makeDirectory(root string) (*directory, error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("make directory for clusters: %w", err)
	}
	if err := removeAbandoned(root); err != nil {
		return nil, err
	}
	path, err := os.MkdirTemp(root, "c")
	if err != nil {
		return nil, fmt.Errorf("make directory for a cluster: %w", err)
	}
	lock, err := filelock.Acquire(filepath.Join(path, ownerLock))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(path))
	}
	return &directory{path: path, lock: lock}, nil
}

func (d *directory) data() string { return filepath.Join(d.path, dataDir) }

// remove removes the directory of a cluster that has ended.
func (d *directory) remove() error {
	return errors.Join(os.RemoveAll(d.path), d.lock.Close())
}

// removeAbandoned removes directories that no process uses. What the kernel and berth-isolate still clean up is left for the next
// call.
func removeAbandoned(root string) error {
	entries, err := os.ReadDir(root)
	if err != nil {
		return fmt.Errorf("list directories of clusters: %w", err)
	}
	for _, entry := range entries {
		path := filepath.Join(root, entry.Name())
		if err := removeIfAbandoned(path); err != nil {
			return fmt.Errorf("remove a cluster that was left: %w", err)
		}
	}
	return nil
}

func removeIfAbandoned(path string) error {
	var held *filelock.HeldError
	owner, err := openLock(filepath.Join(path, ownerLock))
	if errors.As(err, &held) || errors.Is(err, os.ErrNotExist) { // without the file it is being made
		return nil
	}
	if err != nil {
		return err
	}
	defer owner.Close()
	data, err := openLock(filepath.Join(path, dataDir, isolate.LockName))
	switch {
	case errors.As(err, &held):
		return nil // its processes are ending
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return err
	default:
		defer data.Close()
	}
	return os.RemoveAll(path)
}

// openLock locks an existing file.
func openLock(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	if err := filelock.TryLock(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
