// Package fswatch watches directories, and lets its caller go on without that where the kernel refuses: the number of
// watchers of a user is limited (fs.inotify.max_user_instances), and any root process in a container counts.
package fswatch

import (
	"log/slog"

	"github.com/fsnotify/fsnotify"
)

// Watcher is a watcher of fsnotify, or none.
type Watcher struct {
	inner  *fsnotify.Watcher
	reason error // why there is none
}

// New returns a Watcher. If the kernel refuses it, it logs that and what to do, with what, which the caller then has to check
// periodically.
func New(logger *slog.Logger, what string) *Watcher {
	inner, err := fsnotify.NewWatcher()
	if err != nil {
		logger.Warn("cannot watch files; checking them periodically", "what", what, "error", err,
			"remedy", "raise the sysctls fs.inotify.max_user_instances and fs.file-max")
		return &Watcher{reason: err}
	}
	return &Watcher{inner: inner}
}

// Works reports whether events come.
func (w *Watcher) Works() bool { return w.inner != nil }

// Events returns the channel of events; nil if none will come.
func (w *Watcher) Events() <-chan fsnotify.Event {
	if w.inner == nil {
		return nil
	}
	return w.inner.Events
}

// Errors returns the channel of errors, such as lost events; nil if none will come.
func (w *Watcher) Errors() <-chan error {
	if w.inner == nil {
		return nil
	}
	return w.inner.Errors
}

// Add watches a path. To watch one twice does no harm.
func (w *Watcher) Add(path string) error {
	if w.inner == nil {
		return w.reason
	}
	return w.inner.Add(path)
}

// Close ends the watch.
func (w *Watcher) Close() error {
	if w.inner == nil {
		return nil
	}
	return w.inner.Close()
}
