package iolimit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/fsnotify/fsnotify"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/fswatch"
)

// ErrUnsupported says that this machine's cgroups cannot limit the I/O of a device.
var ErrUnsupported = errors.New("the kernel cannot limit I/O here: neither the controller io of cgroup v2 nor blkio of cgroup v1 is mounted")

const (
	unifiedFile = "io.max"
	legacyFile  = "blkio.throttle.read_bps_device"
)

// hierarchy is where the limits are.
type hierarchy struct {
	dir    string
	legacy bool
}

// Limiter limits devices. It is safe for concurrent use.
type Limiter struct {
	logger *slog.Logger

	mu sync.Mutex // guards all below
	// found is the hierarchy, nil before the first use.
	found *hierarchy
	// limited has the devices that are limited, by cgroup v1 only: new cgroups get their limits.
	limited map[Device]Limits
	// wanted is closed when the first device is limited by cgroup v1.
	wanted chan struct{}
	once   sync.Once
}

// New returns a Limiter. The logger may be nil.
func New(logger *slog.Logger) *Limiter {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Limiter{logger: logger, limited: map[Device]Limits{}, wanted: make(chan struct{})}
}

// Supported returns ErrUnsupported if no device can be limited.
func (l *Limiter) Supported() error {
	_, err := l.find()
	return err
}

// Apply limits the device as Limits say, and removes other limits of it. To apply what is in force costs a few reads. Without
// limits, a machine that cannot limit is no error.
func (l *Limiter) Apply(device Device, limits Limits) error {
	h, err := l.find()
	if err != nil {
		if limits.IsZero() {
			return nil
		}
		return err
	}
	if !h.legacy {
		return applyUnified(h.dir, device, limits)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if limits.IsZero() {
		delete(l.limited, device)
	} else {
		l.limited[device] = limits
		l.once.Do(func() { close(l.wanted) })
	}
	return applyLegacy(h.dir, device, limits)
}

// find returns the hierarchy of the controller of I/O. It reads the mount table until it has found it.
func (l *Limiter) find() (hierarchy, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.found != nil {
		return *l.found, nil
	}
	h, err := findHierarchy()
	if err == nil {
		l.found = &h
	}
	return h, err
}

func findHierarchy() (hierarchy, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return hierarchy{}, fmt.Errorf("read the mount table: %w", err)
	}
	for _, m := range mounts {
		if m.FSType == "cgroup" && slices.Contains(strings.Split(m.VFSOptions, ","), "blkio") {
			if _, err := os.Stat(filepath.Join(m.Mountpoint, legacyFile)); err == nil {
				return hierarchy{dir: m.Mountpoint, legacy: true}, nil
			}
			continue
		}
		content, err := os.ReadFile(filepath.Join(m.Mountpoint, "cgroup.controllers"))
		if err == nil && slices.Contains(strings.Fields(string(content)), "io") {
			return hierarchy{dir: m.Mountpoint}, nil
		}
	}
	return hierarchy{}, ErrUnsupported
}

// applyUnified sets the limits of the topmost cgroups that have any: that of the mount, in a container, or those below it. If none has, as
// on a machine where nothing has needed the controller yet, it is enabled for them.
func applyUnified(dir string, device Device, limits Limits) error {
	found, err := setUnified(dir, device, limits)
	if err == nil && !found && !limits.IsZero() {
		control := filepath.Join(dir, "cgroup.subtree_control")
		if err := os.WriteFile(control, []byte("+io"), 0o644); err != nil {
			return fmt.Errorf("limit the I/O of device %s: %w: enable the controller io in %s: %w", device, ErrUnsupported, control, err)
		}
		if found, err = setUnified(dir, device, limits); err == nil && !found {
			err = fmt.Errorf("no cgroup in %s has the file %s", dir, unifiedFile)
		}
	}
	if err != nil {
		return fmt.Errorf("limit the I/O of device %s: %w", device, err)
	}
	return nil
}

// setUnified sets the limits of the topmost cgroups. found says that there is one with the controller.
func setUnified(dir string, device Device, limits Limits) (found bool, err error) {
	dirs := []string{dir}
	if _, err := os.Stat(filepath.Join(dir, unifiedFile)); errors.Is(err, os.ErrNotExist) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return false, err
		}
		dirs = nil
		for _, entry := range entries {
			if entry.IsDir() {
				dirs = append(dirs, filepath.Join(dir, entry.Name()))
			}
		}
	}
	for _, dir := range dirs {
		err := set(filepath.Join(dir, unifiedFile), device, unifiedLine(device, limits), !limits.IsZero())
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) && limits.IsZero() {
			continue // the controller is not enabled there, or the cgroup is gone
		}
		if err != nil {
			return false, err
		}
		found = true
	}
	return found, nil
}

// applyLegacy sets the limits of every cgroup. The root has them if any has.
func applyLegacy(dir string, device Device, limits Limits) error {
	if limits.IsZero() {
		content, err := os.ReadFile(filepath.Join(dir, legacyFile))
		iops, iopsErr := os.ReadFile(filepath.Join(dir, "blkio.throttle.read_iops_device"))
		if err == nil && iopsErr == nil && hasLine(string(content), device, "", false) && hasLine(string(iops), device, "", false) {
			return nil
		}
	}
	// The root last when limits are removed, because it shows whether there are any.
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) || err == nil && (!entry.IsDir() || path == dir && limits.IsZero()) {
			return nil
		}
		if err != nil {
			return err
		}
		return ignoreGone(setLegacy(path, device, limits))
	})
	if err == nil && limits.IsZero() {
		err = setLegacy(dir, device, limits)
	}
	if err != nil {
		return fmt.Errorf("limit the I/O of device %s: %w", device, err)
	}
	return nil
}

func setLegacy(dir string, device Device, limits Limits) error {
	for name, limit := range legacyFiles(limits) {
		line := fmt.Sprintf("%s %d", device, limit)
		if err := set(filepath.Join(dir, name), device, line, limit != 0); err != nil {
			return err
		}
	}
	return nil
}

// set writes the line to the file unless it has it.
func set(file string, device Device, line string, limited bool) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if hasLine(string(content), device, line, limited) {
		return nil
	}
	return os.WriteFile(file, []byte(line), 0o644)
}

// ignoreGone returns nil for the error of a cgroup that has been removed.
func ignoreGone(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// Start limits what cgroups do that are created later, until ctx is done. With cgroup v2, and before the first device is limited,
// it only waits.
func (l *Limiter) Start(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-l.wanted:
	}
	h, err := l.find()
	if err != nil {
		return err
	}
	watcher := fswatch.New(l.logger, "cgroups of blkio")
	defer watcher.Close()
	l.cover(watcher, h.dir)
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-watcher.Events():
			if ok && event.Has(fsnotify.Create) {
				l.cover(watcher, event.Name)
			}
		case err, ok := <-watcher.Errors():
			if !ok {
				return nil
			}
			l.logger.Warn("events of cgroups were lost; reading them all", "error", err)
			l.cover(watcher, h.dir)
		}
	}
}

// cover watches a cgroup and all below it, and limits them. The watch comes first, so that none is missed.
func (l *Limiter) cover(watcher *fswatch.Watcher, dir string) {
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) || err == nil && !entry.IsDir() {
			return nil
		}
		if err != nil {
			return err
		}
		watchErr := watcher.Add(path)
		l.mu.Lock()
		limited := maps.Clone(l.limited)
		l.mu.Unlock()
		for device, limits := range limited {
			if err := setLegacy(path, device, limits); err != nil {
				return ignoreGone(err)
			}
		}
		return ignoreGone(watchErr)
	})
	if err != nil {
		l.logger.Error("failed to limit the I/O of a new cgroup; Pods in it are not limited", "cgroup", dir, "error", err)
	}
}
