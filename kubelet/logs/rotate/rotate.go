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
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
)

const (
	// DefaultMaxSize, in bytes, and DefaultMaxFiles are the defaults of Config.
	DefaultMaxSize   = 10 << 20
	DefaultMaxFiles  = 5
	defaultPeriod    = 10 * time.Second
	compressedSuffix = ".gz"
	tempSuffix       = ".tmp"
	timeLayout       = "20060102-150405"
)

// Runtime makes a container continue in a new log file.
type Runtime interface {
	ReopenContainerLog(ctx context.Context, in *runtimeapi.ReopenContainerLogRequest, opts ...grpc.CallOption,
	) (*runtimeapi.ReopenContainerLogResponse, error)
}

// Log is the log file of one running container.
type Log struct {
	ContainerID string // without the runtime's name
	Path        string
}

// Config are the values of a Rotator.
type Config struct {
	// MaxSize is the size from which on a file is rotated, in bytes; 10 MiB if zero.
	MaxSize int64
	// MaxFiles is the maximum number of files of a container, including the current one; 5 if zero, at least 2.
	MaxFiles int
	// Period is the interval of checks; 10 s if zero. The kernel has no event for a file's size.
	Period time.Duration
}

// Deps are what a Rotator works with. Runtime and Logs are required.
type Deps struct {
	Runtime Runtime
	// Logs returns the log files of the running containers.
	Logs   func() []Log
	Logger *slog.Logger
	Clock  clock.WithTicker
}

// Rotator rotates logs.
type Rotator struct {
	config Config
	deps   Deps
}

// New returns a Rotator. Start runs it.
func New(deps Deps, config Config) (*Rotator, error) {
	switch {
	case deps.Runtime == nil:
		return nil, errors.New("rotate: Deps.Runtime is required")
	case deps.Logs == nil:
		return nil, errors.New("rotate: Deps.Logs is required")
	}
	if config.MaxSize == 0 {
		config.MaxSize = DefaultMaxSize
	}
	if config.MaxFiles == 0 {
		config.MaxFiles = DefaultMaxFiles
	}
	if config.MaxSize < 0 || config.MaxFiles < 2 {
		return nil, fmt.Errorf("rotate: Config.MaxSize %d and MaxFiles %d: want a size above 0 and at least 2 files",
			config.MaxSize, config.MaxFiles)
	}
	if config.Period <= 0 {
		config.Period = defaultPeriod
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	return &Rotator{config: config, deps: deps}, nil
}

// Start checks all logs each period until ctx ends.
func (r *Rotator) Start(ctx context.Context) error {
	ticker := r.deps.Clock.NewTicker(r.config.Period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		for _, log := range r.deps.Logs() {
			if err := r.rotateIfLarge(ctx, log); err != nil && ctx.Err() == nil {
				r.deps.Logger.Warn("failed to rotate container log", "log", log.Path, "error", err)
			}
		}
	}
}

// rotateIfLarge rotates one log if it is too large.
func (r *Rotator) rotateIfLarge(ctx context.Context, log Log) error {
	info, err := os.Lstat(log.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return r.reopen(ctx, log) // an earlier process died between renaming it and opening a new one
	}
	if err != nil {
		return fmt.Errorf("measure log %q: %w", log.Path, err)
	}
	if !info.Mode().IsRegular() || info.Size() < r.config.MaxSize {
		return nil
	}
	if err := r.prune(log.Path); err != nil {
		return err
	}
	rotated := log.Path + "." + r.deps.Clock.Now().UTC().Format(timeLayout)
	if err := os.Rename(log.Path, rotated); err != nil {
		return fmt.Errorf("rename log: %w", err)
	}
	if err := r.reopen(ctx, log); err != nil {
		// The runtime still writes to the file: restore its name, so that it can be read and rotated later.
		return errors.Join(err, os.Rename(rotated, log.Path))
	}
	return nil
}

func (r *Rotator) reopen(ctx context.Context, log Log) error {
	_, err := r.deps.Runtime.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: log.ContainerID})
	if err != nil {
		return fmt.Errorf("open a new log of container %s: %w", log.ContainerID, err)
	}
	return nil
}

// prune compresses the rotated files and removes the oldest, so that one more file fits.
func (r *Rotator) prune(path string) error {
	found, err := filepath.Glob(escapeGlob(path) + ".*")
	if err != nil {
		return fmt.Errorf("list old files of log %q: %w", path, err)
	}
	var old []string
	for _, name := range found {
		if strings.HasSuffix(name, tempSuffix) {
			if err := os.Remove(name); err != nil {
				return fmt.Errorf("remove partly compressed log: %w", err)
			}
			continue
		}
		old = append(old, name)
	}
	slices.Sort(old) // by time
	// One file is the log itself, and one the rotated file that it becomes.
	if keep := r.config.MaxFiles - 2; len(old) > keep {
		for _, name := range old[:len(old)-keep] {
			if err := os.Remove(name); err != nil {
				return fmt.Errorf("remove old log: %w", err)
			}
		}
		old = old[len(old)-keep:]
	}
	for _, name := range old {
		if strings.HasSuffix(name, compressedSuffix) {
			continue
		}
		if err := compress(name); err != nil {
			return fmt.Errorf("compress old log %q: %w", name, err)
		}
	}
	return nil
}

// compress replaces a file by a compressed one. A crash leaves the file, and a partly written one that prune removes.
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
	if err := os.Rename(temporary, name+compressedSuffix); err != nil {
		return err
	}
	return os.Remove(name)
}

// escapeGlob escapes the special characters of a glob pattern.
func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
