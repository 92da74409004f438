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

// Link is a container's log under the name that collectors of logs look for.
type Link struct {
	Pod, Namespace, Container, ID string
	// Target is the path of the log file.
	Target string
}

// maxName is the longest name that a file may have, in bytes.
const maxName = 255

// name is POD_NAMESPACE_CONTAINER-ID.log, cut before the ID if it gets too long.
func (l Link) name() string {
	end := "-" + l.ID + ".log"
	front := l.Pod + "_" + l.Namespace + "_" + l.Container
	return front[:max(0, min(len(front), maxName-len(end)))] + end
}

// Links keeps a directory with a link to the log of each container instance that the runtime holds. It touches nothing
// there but links that lead below a directory of its own. Its methods may be called concurrently.
type Links struct {
	dir, logRoot string

	mu    sync.Mutex
	names map[string]string // names of the links that this process made or found, by container ID
}

// NewLinks makes a Links for a directory, which is made when it is needed, with logs below another one.
func NewLinks(dir, logRoot string) *Links {
	return &Links{dir: dir, logRoot: filepath.Clean(logRoot) + "/", names: map[string]string{}}
}

// Add makes a link, in the place of one that leads elsewhere.
func (l *Links) Add(link Link) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.add(link)
}

func (l *Links) add(link Link) error {
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		return fmt.Errorf("make directory of log links: %w", err)
	}
	path := filepath.Join(l.dir, link.name())
	if old, err := os.Readlink(path); err != nil || old != link.Target {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("replace log link of container %q: %w", link.Container, err)
		}
		if err := os.Symlink(link.Target, path); err != nil {
			return fmt.Errorf("link log of container %q: %w", link.Container, err)
		}
	}
	l.names[link.ID] = link.name()
	return nil
}

// Remove takes the link of a container away. That there is none is no error.
func (l *Links) Remove(id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	name, ok := l.names[id]
	if !ok {
		return nil
	}
	if err := os.Remove(filepath.Join(l.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove log link of container %s: %w", id, err)
	}
	delete(l.names, id)
	return nil
}

// Reconcile makes the links that an earlier process owed, given what the runtime holds, and removes those that it left
// behind. What this process has made meanwhile stays.
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
	entries, err := os.ReadDir(l.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, fmt.Errorf("list log links: %w", err))
	}
	for _, entry := range entries {
		path := filepath.Join(l.dir, entry.Name())
		target, err := os.Readlink(path)
		if keep[entry.Name()] || err != nil || !strings.HasPrefix(target, l.logRoot) {
			continue // wanted, or not ours
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove log link of a container that is gone: %w", err))
		}
	}
	return errors.Join(errs...)
}
