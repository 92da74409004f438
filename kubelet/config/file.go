package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/fswatch"
)

const (
	defaultCheckPeriod = 20 * time.Second
	// minStableAge is how old a file must be for its times to show that it has not changed since: file systems count in
	// steps of several milliseconds, and some in whole seconds.
	minStableAge = 2 * time.Second
)

// FileConfig are the values a File works with.
type FileConfig struct {
	// Path is a file, or a directory whose files are read except those whose names begin with a dot.
	Path string
	// NodeName is part of the Pods' names.
	NodeName string
	// Period is how often all files are checked, in case a file event was lost; 20 s if zero.
	Period time.Duration
}

// FileDeps are what a File needs from others.
type FileDeps struct {
	// Set gets all Pods of the path each time it was read. It must not block.
	Set func([]*corev1.Pod)
	// Logger and Clock may be nil.
	Logger *slog.Logger
	Clock  clock.WithTicker
}

// File is the source of static Pods in a file or a directory. A file that cannot be read or decoded does not affect the
// others; if it was valid before, its Pods stay, since a manifest that is half written does not mean that a Pod is to
// stop.
type File struct {
	config FileConfig
	deps   FileDeps
	// files are the files as last read, by path, and removed those of them that were removed since. Both belong to Start's
	// goroutine.
	files   map[string]*manifest
	removed map[string]bool
}

// manifest is one file as last seen.
type manifest struct {
	version fileVersion
	pods    []*corev1.Pod
	err     string // that was logged
}

// fileVersion changes when a file does, unless the file is younger than minStableAge.
type fileVersion struct {
	inode, device  uint64
	size           int64
	modified, meta unix.Timespec
}

// NewFile returns the source. Start runs it.
func NewFile(deps FileDeps, config FileConfig) (*File, error) {
	switch {
	case !filepath.IsAbs(config.Path):
		return nil, fmt.Errorf("static Pods: path %q is not absolute", config.Path)
	case deps.Set == nil:
		return nil, errors.New("config: FileDeps.Set is required")
	case config.Period < 0:
		return nil, fmt.Errorf("static Pods: check period %s is negative", config.Period)
	}
	config.Path = filepath.Clean(config.Path)
	if config.Period == 0 {
		config.Period = defaultCheckPeriod
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	return &File{config: config, deps: deps, files: map[string]*manifest{}, removed: map[string]bool{}}, nil
}

// Start watches the path until ctx ends. A path that does not exist has no Pods.
func (f *File) Start(ctx context.Context) error {
	watcher := fswatch.New(f.deps.Logger, "static Pods in "+f.config.Path)
	defer watcher.Close()
	ticker := f.deps.Clock.NewTicker(f.config.Period)
	defer ticker.Stop()
	for {
		f.watch(watcher)
		f.forgetRemoved()
		f.deps.Set(f.list())
		if !f.wait(ctx, watcher, ticker.C()) {
			return nil
		}
	}
}

// watch watches the path, and the nearest existing directory above it, for when the path is created or removed.
func (f *File) watch(watcher *fswatch.Watcher) {
	if !watcher.Works() {
		return
	}
	above := filepath.Dir(f.config.Path)
	for {
		if err := watcher.Add(above); err == nil || above == filepath.Dir(above) {
			break
		}
		above = filepath.Dir(above)
	}
	err := watcher.Add(f.config.Path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.deps.Logger.Warn("failed to watch static Pods; checking them periodically", "path", f.config.Path,
			"period", f.config.Period, "error", err)
	}
}

// wait returns when there may be something new, or false when ctx has ended.
func (f *File) wait(ctx context.Context, watcher *fswatch.Watcher, tick <-chan time.Time) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case event := <-watcher.Events():
			if !f.isRelevant(event.Name) {
				continue
			}
			f.noteRemoval(event)
			f.drainEvents(watcher)
			return true
		case err := <-watcher.Errors():
			f.deps.Logger.Warn("lost events of static Pods; reading all of them", "path", f.config.Path, "error", err)
			return true // the queue overflowed
		case <-tick:
			return true
		}
	}
}

// drainEvents drops the events that are already there: one read serves all of them.
func (f *File) drainEvents(watcher *fswatch.Watcher) {
	for {
		select {
		case event := <-watcher.Events():
			f.noteRemoval(event)
		default:
			return
		}
	}
}

// noteRemoval notes that a file of the directory was removed. It may be there again when the directory is read.
func (f *File) noteRemoval(event fsnotify.Event) {
	if event.Op.Has(fsnotify.Remove) && f.files[event.Name] != nil && event.Name != f.config.Path {
		f.removed[event.Name] = true
	}
}

// forgetRemoved ends the Pods of the files that were removed: a file that was put back, even with the same content, has Pods
// that start over.
func (f *File) forgetRemoved() {
	if len(f.removed) == 0 {
		return
	}
	for path := range f.removed {
		delete(f.files, path)
	}
	clear(f.removed)
	var left []*corev1.Pod
	for _, path := range slices.Sorted(maps.Keys(f.files)) {
		left = append(left, f.files[path].pods...)
	}
	f.deps.Set(left)
}

// isRelevant reports whether a path is below ours, or above it.
func (f *File) isRelevant(path string) bool {
	below := func(a, b string) bool { return a == b || strings.HasPrefix(a, strings.TrimSuffix(b, "/")+"/") }
	return below(path, f.config.Path) || below(f.config.Path, path)
}

// list reads the files that have changed and returns the Pods of all files, in the order of their names.
func (f *File) list() []*corev1.Pod {
	paths, err := f.paths()
	if err != nil {
		f.deps.Logger.Warn("failed to list static Pods; keeping the known ones", "path", f.config.Path, "error", err)
		paths = slices.Sorted(maps.Keys(f.files))
	}
	var pods []*corev1.Pod
	next := make(map[string]*manifest, len(paths))
	for _, path := range paths {
		if next[path] = f.readIfChanged(path, f.files[path]); next[path] == nil {
			delete(next, path)
			continue
		}
		pods = append(pods, next[path].pods...)
	}
	f.files = next
	return pods
}

// paths are the files that may be manifests, sorted.
func (f *File) paths() ([]string, error) {
	info, err := os.Stat(f.config.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !info.IsDir():
		return []string{f.config.Path}, nil
	}
	entries, err := os.ReadDir(f.config.Path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var paths []string
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), ".") && !entry.IsDir() {
			paths = append(paths, filepath.Join(f.config.Path, entry.Name()))
		}
	}
	return paths, nil
}

// readIfChanged reads a file if it has changed. It returns nil if the file is not a manifest.
func (f *File) readIfChanged(path string, before *manifest) *manifest {
	if before == nil {
		before = &manifest{}
	}
	data, now, err := f.read(path, before.version)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errNotRegular):
		return nil
	case err == nil && data == nil:
		return before // not changed
	}
	next := &manifest{version: now, pods: before.pods}
	var pods []*corev1.Pod
	if err == nil {
		pods, err = Decode(data, SourceInfo{Source: SourceFile, Location: path, NodeName: f.config.NodeName})
	}
	if err == nil {
		next.pods = pods
		return next
	}
	next.err = err.Error()
	if next.err != before.err && !errors.Is(err, errEmpty) {
		f.deps.Logger.Warn("invalid manifest of a static Pod; ignoring it", "file", path, "error", err)
	}
	return next
}

// errNotRegular says that a path is neither a file nor a link to one.
var errNotRegular = errors.New("not a regular file")

// read reads a file, or nothing if its version is still the given one.
func (f *File) read(path string, before fileVersion) ([]byte, fileVersion, error) {
	// Opening a pipe or a device must neither block nor have an effect.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fileVersion{}, err
	}
	defer file.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return nil, fileVersion{}, fmt.Errorf("stat %q: %w", path, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fileVersion{}, errNotRegular
	}
	now := fileVersion{inode: stat.Ino, device: uint64(stat.Dev), size: stat.Size, modified: stat.Mtim, meta: stat.Ctim}
	if now == before {
		return nil, now, nil
	}
	changed := time.Unix(stat.Ctim.Unix())
	if f.deps.Clock.Now().Sub(changed) < minStableAge {
		now = fileVersion{} // it may change again without a visible difference: never equal
	}
	if stat.Size > MaxManifest {
		return nil, now, fmt.Errorf("read %q: %d bytes, a manifest has at most %d", path, stat.Size, MaxManifest)
	}
	data, err := io.ReadAll(io.LimitReader(file, MaxManifest+1))
	if err != nil {
		return nil, now, fmt.Errorf("read %q: %w", path, err)
	}
	if data == nil {
		data = []byte{}
	}
	return data, now, nil
}
