package resolvconf

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"
)

// Watch calls notify once the files are watched, and after each change of their contents, also where one is a link, is
// replaced, or does not exist yet. It returns when ctx is done.
func (f Files) Watch(ctx context.Context, notify func()) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", f.Main, err)
	}
	defer watcher.Close()
	for {
		entries, err := f.watchEntries(watcher)
		if err != nil {
			return err
		}
		notify()
		if err := waitChange(ctx, watcher, entries); err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// waitChange waits until one of the entries changes or ctx is done.
func waitChange(ctx context.Context, watcher *fsnotify.Watcher, entries map[string]bool) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-watcher.Events:
			if entries[event.Name] && !event.Has(fsnotify.Chmod) {
				return nil
			}
		case err := <-watcher.Errors:
			if errors.Is(err, fsnotify.ErrEventOverflow) {
				return nil // what was lost may have been a change
			}
			return fmt.Errorf("watch the machine's name servers: %w", err)
		}
	}
}

// watchEntries watches the directories of all entries that decide about the contents of the files, and no others. It returns
// the entries and the directories. What changes while it adds a directory causes no event, so it repeats until nothing has changed.
func (f Files) watchEntries(watcher *fsnotify.Watcher) (map[string]bool, error) {
	for entries := f.entries(); ; {
		dirs := make(map[string]bool)
		for entry := range entries {
			dirs[filepath.Dir(entry)] = true
		}
		for _, dir := range watcher.WatchList() {
			if !dirs[dir] {
				_ = watcher.Remove(dir) // it may have been removed with the directory
			}
		}
		for dir := range dirs {
			if err := watcher.Add(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, fmt.Errorf("watch directory %s: %w", dir, err)
			}
		}
		now := f.entries()
		if maps.Equal(now, entries) {
			maps.Copy(entries, dirs) // a directory may be removed after it was emptied
			return entries, nil
		}
		entries = now
	}
}

// entries are the directory entries that decide about the contents of the files.
func (f Files) entries() map[string]bool {
	entries := make(map[string]bool)
	for _, file := range []string{f.Main, f.Resolved} {
		if file == "" {
			continue
		}
		for _, entry := range chain(file) {
			entries[entry] = true
		}
	}
	return entries
}

// maxLinks bounds how many links lead to a file, as the kernel does.
const maxLinks = 40

// chain returns the directory entries that decide about the content of a file: the file, the links on the way to it, and for
// one that does not exist, the first missing directory.
func chain(path string) []string {
	var entries []string
	for range maxLinks {
		entry := firstMissing(path)
		entries = append(entries, entry)
		target, err := os.Readlink(entry)
		if entry != path || err != nil {
			break
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(entry), target)
		}
		path = target
	}
	return entries
}

// firstMissing returns the path with its directory's links resolved, or its first part that does not exist.
func firstMissing(path string) string {
	dir := string(filepath.Separator)
	for _, part := range strings.Split(strings.Trim(filepath.Dir(path), "/"), "/") {
		if part == "" {
			continue
		}
		next := filepath.Join(dir, part)
		resolved, err := filepath.EvalSymlinks(next)
		if err != nil {
			return next
		}
		dir = resolved
	}
	return filepath.Join(dir, filepath.Base(path))
}
