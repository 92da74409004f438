package disposable

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/filelock"
	"github.com/berth-dev/berth/up/isolate"
)

// Names in the directory of a cluster. They are short, because paths of sockets are.
const (
	ownerLock       = "owner"
	dataDir         = "data"
	directoryPrefix = "c"
)

// directoryName is what os.MkdirTemp makes of the prefix. The directory of the saved clusters has another name.
var directoryName = regexp.MustCompile("^" + directoryPrefix + "[0-9]+$")

// directory is where a cluster has its files.
type directory struct {
	path string
	// locks are held as long as this process uses the directory.
	locks []*os.File
}

// Root is the directory of this user's clusters.
func Root() string { return filepath.Join(os.TempDir(), "berthtest-"+strconv.Itoa(os.Getuid())) }

// makeDirectory makes a directory for a cluster below root, and removes those of processes that were killed.
func makeDirectory(ctx context.Context, root string) (*directory, error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("make directory for clusters: %w", err)
	}
	made, abandoned, err := claimDirectories(ctx, root)
	if err != nil {
		return nil, err
	}
	if err := abandoned.remove(); err != nil {
		return nil, errors.Join(fmt.Errorf("remove a cluster that was left: %w", err), made.remove())
	}
	return made, nil
}

// claimDirectories makes a directory, and locks those that no process uses. One process at a time does that: a directory without a lock is
// not one that is being made then, but what is left of one whose process was killed while it made or removed it.
func claimDirectories(ctx context.Context, root string) (made *directory, abandoned directories, err error) {
	lock, err := filelock.WaitDir(ctx, clock.RealClock{}, root) // a file in it would be a cluster to earlier versions
	if err != nil {
		return nil, nil, fmt.Errorf("make directory for a cluster: %w", err)
	}
	defer lock.Close()
	if abandoned, err = findAbandoned(root); err != nil {
		return nil, nil, err
	}
	path, err := os.MkdirTemp(root, directoryPrefix)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("make directory for a cluster: %w", err), abandoned.close())
	}
	owner, err := filelock.Acquire(filepath.Join(path, ownerLock))
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(path), abandoned.close())
	}
	return &directory{path: path, locks: []*os.File{owner}}, abandoned, nil
}

func (d *directory) data() string { return filepath.Join(d.path, dataDir) }

// remove removes the directory of a cluster that has ended.
func (d *directory) remove() error {
	return errors.Join(os.RemoveAll(d.path), d.close())
}

func (d *directory) close() error {
	var errs []error
	for _, lock := range d.locks {
		errs = append(errs, lock.Close())
	}
	return errors.Join(errs...)
}

// directories are several, which this process has locked.
type directories []*directory

func (d directories) remove() error { return d.each((*directory).remove) }

func (d directories) close() error { return d.each((*directory).close) }

func (d directories) each(do func(*directory) error) error {
	var errs []error
	for _, one := range d {
		errs = append(errs, do(one))
	}
	return errors.Join(errs...)
}

// findAbandoned locks the directories that no process uses. What the kernel and berth-isolate still clean up is left for the next call.
func findAbandoned(root string) (all directories, err error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, fmt.Errorf("list directories of clusters: %w", err)
	}
	for _, entry := range entries {
		if !entry.IsDir() || !directoryName.MatchString(entry.Name()) {
			continue
		}
		abandoned, err := claimAbandoned(filepath.Join(root, entry.Name()))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("find clusters that were left: %w", err), all.close())
		}
		if abandoned != nil {
			all = append(all, abandoned)
		}
	}
	return all, nil
}

// claimAbandoned locks a directory; nil if a process uses it.
func claimAbandoned(path string) (*directory, error) {
	found := &directory{path: path}
	for _, name := range []string{ownerLock, filepath.Join(dataDir, isolate.LockName)} {
		lock, err := openLock(filepath.Join(path, name))
		switch {
		case errors.As(err, new(*filelock.HeldError)): // by its owner, or by processes of it that are ending
			return nil, found.close()
		case errors.Is(err, os.ErrNotExist): // its process was killed before that was made
		case err != nil:
			return nil, errors.Join(err, found.close())
		default:
			found.locks = append(found.locks, lock)
		}
	}
	return found, nil
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
