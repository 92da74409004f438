// Package savedcluster keeps copies of whole clusters: their store, disks, images, keys and the files of their Pods. A copy is made of files
// that stand still, becomes visible when it is complete, and can be copied to any number of data directories.
package savedcluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/atomicfile"
	"github.com/berth-dev/berth/internal/filelock"
	"github.com/berth-dev/berth/internal/treecopy"
	"github.com/berth-dev/berth/up/removal"
)

const (
	// format is incremented when older versions of berth cannot read a saved cluster any more.
	format = 1
	// infoName and dataName are what a saved cluster has, partial is the suffix of one that is not complete.
	infoName = "saved.json"
	dataName = "data"
	partial  = ".partial"
)

var namePattern = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)

// Info describes a saved cluster.
type Info struct {
	Format int    `json:"format"`
	Name   string `json:"name"`
	// Created is the moment whose state it has.
	Created time.Time `json:"created"`
	// DataDir is where the cluster was, Node its node's name.
	DataDir string `json:"dataDir"`
	Node    string `json:"node"`
	// Berth and Kubernetes are the versions that saved it.
	Berth      string `json:"berth"`
	Kubernetes string `json:"kubernetes"`
	// Running says that it ran, and stood still for Standstill.
	Running    bool          `json:"running"`
	Standstill time.Duration `json:"standstill"`
	// Files and Bytes count its files and their size, Shared the bytes that it shared with the cluster then.
	Files  int   `json:"files"`
	Bytes  int64 `json:"bytes"`
	Shared int64 `json:"shared"`
}

// Store is a directory of saved clusters.
type Store struct{ dir string }

// New returns the store in a directory, which Save makes.
func New(dir string) Store { return Store{dir: dir} }

// Hold keeps the cluster's files from changing until end is called; within is how long that may be, 0 for any time.
type Hold func(ctx context.Context) (end func() error, within time.Duration, err error)

// Save copies the data directory of info, whose files hold keeps still meanwhile. It returns the completed info. A name that exists is an error.
func (s Store) Save(ctx context.Context, info Info, hold Hold) (_ Info, err error) {
	target, err := s.path(info.Name)
	if err != nil {
		return info, err
	}
	if _, err := os.Lstat(target); err == nil {
		return info, fmt.Errorf("a saved cluster %q exists: delete it first (berth snapshot delete %s), or choose another name", info.Name, info.Name)
	}
	work, err := makeWorkDir(target + partial)
	if err != nil {
		return info, err
	}
	defer func() { err = errors.Join(err, work.remove()) }()
	made := filepath.Join(work.path, "saved")
	if err := os.Mkdir(made, 0o700); err != nil {
		return info, err
	}
	if err := s.copyHeld(ctx, &info, filepath.Join(made, dataName), hold); err != nil {
		return info, fmt.Errorf("save the cluster in %s: %w", info.DataDir, err)
	}
	info.Format = format
	data, err := json.MarshalIndent(info, "", "  ")
	if err != nil {
		return info, err
	}
	if err := atomicfile.Write(filepath.Join(made, infoName), append(data, '\n'), 0o600); err != nil {
		return info, err
	}
	if err := syncFilesystem(made); err != nil {
		return info, err
	}
	if err := os.Rename(made, target); err != nil {
		return info, fmt.Errorf("save the cluster in %s: %w", info.DataDir, err)
	}
	return info, syncFilesystem(s.dir)
}

// copyHeld copies the data directory while the cluster stands still.
func (s Store) copyHeld(ctx context.Context, info *Info, to string, hold Hold) (err error) {
	end, within, err := hold(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	defer func() {
		info.Standstill = time.Since(began)
		err = errors.Join(err, end())
	}()
	info.Created = began
	if within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, within, fmt.Errorf("copying takes longer than the %v for which a cluster of this terminal may "+
			"stand still: stop it first, or run it as a service or with nohup", within))
		defer cancel()
	}
	stats, err := treecopy.Copy(ctx, info.DataDir, to, isTransient)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	info.Files, info.Bytes, info.Shared = stats.Files, stats.Bytes, stats.Shared
	return err
}

// isTransient reports whether a path in a data directory is of one run only, as locks and the logs of components, or of its file system.
// Logs of Pods stay.
func isTransient(path string) bool {
	dir, file := filepath.Split(path)
	return path == lockName || path == WorkName || path == removal.LostAndFound || path == "controlplane.lock" || dir == "log/" && strings.Contains(file, ".log")
}

// Copy copies a saved cluster to a data directory, which must not exist or be empty, and prepares it there. prepare is called with the path of
// the copy before it is moved to dataDir, so that a copy that is not complete never is a data directory.
func (s Store) Copy(ctx context.Context, name, dataDir string, prepare func(copy string, info Info) error) error {
	notEmpty := fmt.Errorf("--data-dir %s exists and is not empty: choose another directory", dataDir)
	return s.place(ctx, name, dataDir, prepare, func(made, aside string, mounted bool) error {
		if mounted {
			if former, err := contentOf(dataDir); err != nil || len(former) > 0 {
				return cmp.Or(err, notEmpty)
			}
			return replaceContent(made, dataDir, aside)
		}
		err := os.Rename(made, dataDir) // replaces an empty directory
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTDIR) {
			return notEmpty
		}
		return err
	})
}

// Replace is Copy for a data directory that exists: the copy takes its place, and the former content is deleted. The caller has its lock.
func (s Store) Replace(ctx context.Context, name, dataDir string, prepare func(copy string, info Info) error) error {
	return s.place(ctx, name, dataDir, prepare, func(made, aside string, mounted bool) error {
		// place deletes the former content next, so that the copy must be on the disk then.
		if err := syncFilesystem(made); err != nil {
			return err
		}
		if mounted {
			if err := replaceContent(made, dataDir, aside); err != nil {
				return err
			}
			return syncFilesystem(dataDir)
		}
		if err := os.Rename(dataDir, aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.Rename(made, dataDir); err != nil {
			return errors.Join(err, os.Rename(aside, dataDir))
		}
		return syncFilesystem(dataDir)
	})
}

// place makes a copy beside dataDir, or in it where that is mounted, and moves it there. move may put the former content at aside.
func (s Store) place(
	ctx context.Context, name, dataDir string, prepare func(string, Info) error, move func(made, aside string, mounted bool) error,
) (err error) {
	info, err := s.Get(name)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dataDir), 0o755); err != nil {
		return err
	}
	mounted, err := isMounted(dataDir)
	if err != nil {
		return err
	}
	workPath := dataDir + partial
	if mounted {
		workPath = filepath.Join(dataDir, WorkName)
	}
	work, err := makeWorkDir(workPath)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, work.remove()) }()
	made := filepath.Join(work.path, dataName)
	if _, err := treecopy.Copy(ctx, filepath.Join(s.dir, name, dataName), made, nil); err != nil {
		return fmt.Errorf("copy the saved cluster %s: %w", name, err)
	}
	if err := prepare(made, info); err != nil {
		return fmt.Errorf("prepare the copy of the saved cluster %s: %w", name, err)
	}
	if err := move(made, filepath.Join(work.path, "former"), mounted); err != nil {
		return fmt.Errorf("copy the saved cluster %s: %w", name, err)
	}
	return nil
}

// Get returns a saved cluster's Info.
func (s Store) Get(name string) (info Info, err error) {
	path, err := s.path(name)
	if err != nil {
		return info, err
	}
	data, err := os.ReadFile(filepath.Join(path, infoName))
	if errors.Is(err, fs.ErrNotExist) {
		return info, fmt.Errorf("no saved cluster %q in %s: berth snapshot list shows those that exist", name, s.dir)
	}
	if err != nil {
		return info, fmt.Errorf("read the saved cluster %s: %w", name, err)
	}
	err = json.Unmarshal(data, &info)
	if err == nil && info.Format < 1 {
		err = fmt.Errorf("it has the format %d", info.Format)
	}
	if err != nil {
		return info, fmt.Errorf("%s is damaged: delete the saved cluster (berth snapshot delete %s): %w", filepath.Join(path, infoName), name, err)
	}
	if info.Format > format {
		return info, fmt.Errorf("the saved cluster %s is of a newer berth, %s: use that berth", name, info.Berth)
	}
	info.Name = name
	return info, nil
}

// List returns the saved clusters, the oldest first. Damaged ones are in the error.
func (s Store) List() (all []Info, err error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list saved clusters: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), partial) || !namePattern.MatchString(entry.Name()) {
			continue
		}
		info, err := s.Get(entry.Name())
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, info)
	}
	slices.SortFunc(all, func(a, b Info) int { return a.Created.Compare(b.Created) })
	return all, errors.Join(errs...)
}

// Delete deletes a saved cluster.
func (s Store) Delete(name string) error {
	path, err := s.path(name)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(path); err != nil {
		return fmt.Errorf("no saved cluster %q in %s: berth snapshot list shows those that exist", name, s.dir)
	}
	work, err := makeWorkDir(path + partial)
	if err != nil {
		return err
	}
	// From then on it is not in the list, also if deleting is interrupted.
	return errors.Join(os.Rename(path, filepath.Join(work.path, "deleted")), work.remove())
}

func (s Store) path(name string) (string, error) {
	if !namePattern.MatchString(name) || strings.HasSuffix(name, partial) {
		return "", fmt.Errorf("name %q of a saved cluster: want up to 63 letters, digits, '-', '_' and '.', not at its ends", name)
	}
	return filepath.Join(s.dir, name), nil
}

// workDir is a directory for what is not complete.
type workDir struct {
	path string
	lock *os.File
}

// makeWorkDir makes the directory, and removes what an interrupted process has left there.
func makeWorkDir(path string) (*workDir, error) {
	for {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, err
		}
		lock, err := filelock.AcquireDir(path)
		if err != nil {
			return nil, fmt.Errorf("%s: another command works on it: wait until it has finished: %w", strings.TrimSuffix(path, partial), err)
		}
		entries, err := os.ReadDir(path)
		if err == nil && len(entries) == 0 {
			return &workDir{path: path, lock: lock}, nil
		}
		if err := errors.Join(os.RemoveAll(path), lock.Close()); err != nil {
			return nil, err
		}
	}
}

func (w *workDir) remove() error { return errors.Join(os.RemoveAll(w.path), w.lock.Close()) }

// syncFilesystem makes a copy outlive a power failure.
func syncFilesystem(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Syncfs(int(file.Fd())), file.Close()); err != nil {
		return fmt.Errorf("write %s to the disk: %w", path, err)
	}
	return nil
}
