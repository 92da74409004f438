package logs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// Link is a link to a container's log, with the name that log collectors expect.
type Link struct {
	Pod, Namespace, Container, ID string
	// Target is the path of the log file.
	Target string
}

// maxName is the length of the longest file name, in bytes.
const maxName = 255

// name returns POD_NAMESPACE_CONTAINER-ID.log, truncated before the ID if it is too long.
func (l Link) name() string {
	end := "-" + l.ID + ".log"
	front := l.Pod + "_" + l.Namespace + "_" + l.Container
	return front[:max(0, min(len(front), maxName-len(end)))] + end
}

// Links maintains a directory with a link to the log of each container of the runtime. It modifies only links to files
// below its log root. It is safe for concurrent use.
type Links struct {
	dir, logRoot string
	files        Files

	mu    sync.Mutex
	names map[string]string // names of the links that this process created or found, by container ID
}

// Files creates and removes links. container.OSInterface has it.
type Files interface {
	MkdirAll(path string, perm os.FileMode) error
	Symlink(oldname, newname string) error
	Remove(path string) error
	ReadDir(dirname string) ([]os.DirEntry, error)
}

// NewLinks returns a Links for a directory, which is created when it is needed, and the root directory of the logs.
func NewLinks(dir, logRoot string, files Files) *Links {
	return &Links{dir: dir, logRoot: filepath.Clean(logRoot) + "/", files: files, names: map[string]string{}}
}

// Add creates a link and replaces one with another target.
func (l *Links) Add(link Link) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.add(link)
}

func (l *Links) add(link Link) error {
	if err := l.files.MkdirAll(l.dir, 0o755); err != nil {
		return fmt.Errorf("create directory of log links: %w", err)
	}
	path := filepath.Join(l.dir, link.name())
	if old, err := os.Readlink(path); err != nil || old != link.Target {
		if err := l.files.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("replace log link of container %q: %w", link.Container, err)
		}
		if err := l.files.Symlink(link.Target, path); err != nil {
			return fmt.Errorf("link log of container %q: %w", link.Container, err)
		}
	}
	l.names[link.ID] = link.name()
	return nil
}

// Remove removes the link of a container, if there is one.
func (l *Links) Remove(id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	name, ok := l.names[id]
	if !ok {
		return nil
	}
	if err := l.files.Remove(filepath.Join(l.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove log link of container %s: %w", id, err)
	}
	delete(l.names, id)
	return nil
}

// Reconcile creates the missing links of existing containers and removes those that an earlier process left. Links that
// this process has created meanwhile are kept.
func (l *Links) Reconcile(existing []Link) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	keep := map[string]bool{}
	for _, name := range l.names {
		keep[name] = true
	}
	for _, link := range existing {
		errs = append(errs, l.add(link))
		keep[link.name()] = true
	}
	entries, err := l.files.ReadDir(l.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, fmt.Errorf("list log links: %w", err))
	}
	for _, entry := range entries {
		path := filepath.Join(l.dir, entry.Name())
		target, err := os.Readlink(path)
		if keep[entry.Name()] || err != nil || !strings.HasPrefix(target, l.logRoot) {
			continue // wanted, or created by another program
		}
		if err := l.files.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove log link of a removed container: %w", err))
		}
	}
	return errors.Join(errs...)
}
