package rotate

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-dev/berth/internal/globs"
	"github.com/berth-dev/berth/internal/wakeup"
)

const (
	compressedSuffix = ".gz"
	tempSuffix       = ".tmp"
	timeLayout       = "20060102-150405"
)

// unusedName returns the name of a rotated file: that of the log and the time, in more detail if the log was rotated in the
// same second before, so that names sort by age.
func unusedName(path string, now time.Time) (string, error) {
	old, _, err := rotatedFiles(path)
	if err != nil {
		return "", err
	}
	newest := ""
	if len(old) > 0 {
		newest = strings.TrimSuffix(old[len(old)-1], compressedSuffix)
	}
	name := path + "." + now.UTC().Format(timeLayout)
	for _, candidate := range []string{name, name + now.UTC().Format("-.000"), name + now.UTC().Format("-.000000000")} {
		candidate = strings.Replace(candidate, "-.", "-", 1)
		if candidate > newest {
			return candidate, nil
		}
	}
	return newest + "0", nil // the clock was set back
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// rotatedFiles returns the rotated files of a log, the oldest first, and those that a crash left partly compressed.
func rotatedFiles(path string) (rotated, partly []string, err error) {
	found, err := filepath.Glob(globs.Escape(path) + ".*")
	if err != nil {
		return nil, nil, fmt.Errorf("list old files of log %q: %w", path, err)
	}
	for _, name := range found {
		if strings.HasSuffix(name, tempSuffix) {
			partly = append(partly, name)
		} else {
			rotated = append(rotated, name)
		}
	}
	age := func(name string) string { return strings.TrimSuffix(name, compressedSuffix) }
	slices.SortFunc(rotated, func(a, b string) int { return strings.Compare(age(a), age(b)) })
	return rotated, partly, nil
}

// prune removes the oldest rotated files, so that at most keep remain.
func prune(path string, keep int) error {
	old, _, err := rotatedFiles(path)
	if err != nil || len(old) <= keep {
		return err
	}
	for _, name := range old[:len(old)-keep] {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove old log: %w", err)
		}
	}
	return nil
}

// packer compresses rotated files, one after the other, so that the rotation of a log does not wait for it.
type packer struct {
	logger *slog.Logger
	wake   wakeup.Signal
	mu     sync.Mutex // guards logs
	logs   []string
}

func newPacker(logger *slog.Logger) *packer { return &packer{logger: logger, wake: wakeup.NewSignal()} }

// pack has the rotated files of a log compressed, all but the newest: what follows the log may still read that.
func (p *packer) pack(path string) {
	p.mu.Lock()
	if !slices.Contains(p.logs, path) {
		p.logs = append(p.logs, path)
	}
	p.mu.Unlock()
	p.wake.Notify()
}

// Start compresses until ctx ends.
func (p *packer) Start(ctx context.Context) {
	for {
		p.mu.Lock()
		logs := p.logs
		p.logs = nil
		p.mu.Unlock()
		for _, path := range logs {
			if err := compressRotated(ctx, path); err != nil && ctx.Err() == nil {
				p.logger.Warn("failed to compress old container logs", "log", path, "error", err)
			}
		}
		select {
		case <-p.wake.C():
		case <-ctx.Done():
			return
		}
	}
}

// compressRotated compresses the rotated files of a log but for the newest.
func compressRotated(ctx context.Context, path string) error {
	old, partly, err := rotatedFiles(path)
	if err != nil {
		return err
	}
	for _, name := range partly {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove partly compressed log: %w", err)
		}
	}
	for _, name := range old[:max(len(old)-1, 0)] {
		if strings.HasSuffix(name, compressedSuffix) || ctx.Err() != nil {
			continue
		}
		if err := compress(name); err != nil && !errors.Is(err, fs.ErrNotExist) { // it may be pruned meanwhile
			return fmt.Errorf("compress old log %q: %w", name, err)
		}
	}
	return nil
}

// compress replaces a file by a compressed one. A crash leaves the file, and a partly written one that the next call removes.
func compress(name string) (err error) {
	in, err := os.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	temporary := name + tempSuffix
	out, err := os.OpenFile(temporary, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	zip := gzip.NewWriter(out)
	_, err = io.Copy(zip, in)
	if err = errors.Join(err, zip.Close(), out.Close()); err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	if !exists(name) {
		return os.Remove(temporary) // pruned: its compressed form would be one file too many
	}
	if err := os.Rename(temporary, name+compressedSuffix); err != nil {
		return err
	}
	return os.Remove(name)
}
