package containerd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/statefile"
)

// registriesDir is the directory below Root that people may have put descriptions of registries into.
const registriesDir = "certs.d"

// checkTimeout is how long the check of a database may take; it reads some hundred megabytes a second. Damaged ones may never come to
// an end.
const checkTimeout = time.Minute

// exitUnknown is how `containerd check-database` ends if it cannot say whether the database is damaged.
const exitUnknown = 1

// SetAsideDamaged sets containerd's directory aside if one of the databases there is none, or a part of one: containerd would not start with it. What is
// then in its place is empty: images are imported or pulled, and containers created, again. It sets aside, too, what is no file in the place
// of the pod network's configuration. Nothing is deleted. No containerd may run.
func (c Config) SetAsideDamaged(ctx context.Context, logger *slog.Logger) error {
	statefile.SetAsideUnlessFile(logger, filepath.Join(c.CNIConfDir, networkFile), "the configuration of the pod network is written again")
	return c.setAsideDatabases(ctx, logger, func(_ context.Context, path string) error { return checkDatabase(path) })
}

// SetAsideDamagedPages does the same if pages of a database are damaged. It reads the databases whole, each in a process of its own: it is
// for a containerd that has ended by itself. [Config.SetAsideDamaged] comes before it.
func (c Config) SetAsideDamagedPages(ctx context.Context, logger *slog.Logger) error {
	return c.setAsideDatabases(ctx, logger, func(ctx context.Context, path string) error {
		err := c.checkPages(ctx, path)
		if err != nil && !errors.Is(err, statefile.ErrDamaged) && ctx.Err() == nil {
			logger.Warn("failed to check a database of containerd, which has ended by itself", "file", path, "error", err)
			return nil // as far as is known it is whole
		}
		return err
	})
}

func (c Config) setAsideDatabases(ctx context.Context, logger *slog.Logger, check func(ctx context.Context, path string) error) error {
	files, err := filepath.Glob(filepath.Join(c.Root, "io.containerd.*", "*.db"))
	if err != nil {
		return err
	}
	for _, file := range files {
		cause := check(ctx, file)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case cause == nil || errors.Is(cause, fs.ErrNotExist):
			continue
		case statefile.IsPassing(cause):
			return fmt.Errorf("check containerd's database %s: %w", file, cause)
		}
		return c.setRootAside(logger, fmt.Errorf("database %s: %w", file, cause))
	}
	return nil
}

// setRootAside replaces containerd's directory with an empty one, but for what people have put there.
func (c Config) setRootAside(logger *slog.Logger, cause error) error {
	aside := statefile.SetAside(logger, c.Root, cause,
		"images that were imported have to be imported again, others are pulled again; containers are created again")
	if aside == "" {
		return nil // SetAside has said why; containerd will say what follows
	}
	err := os.MkdirAll(c.Root, 0o711)
	if _, statErr := os.Lstat(filepath.Join(aside, registriesDir)); err == nil && statErr == nil {
		err = os.Rename(filepath.Join(aside, registriesDir), filepath.Join(c.Root, registriesDir))
	}
	if err != nil {
		return fmt.Errorf("make containerd's directory again: %w", err)
	}
	return nil
}

// checkPages has containerd's program check a database: see package containers/databasecheck. What a damaged one does to that process
// is another sign of its damage.
func (c Config) checkPages(ctx context.Context, path string) error {
	limited, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	argv, _ := c.Command()
	cmd := exec.CommandContext(limited, argv[0], "check-database", path)
	cmd.Env = []string{"GOTRACEBACK=none"}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case limited.Err() != nil:
		return fmt.Errorf("%w: its pages lead nowhere: it was not read in %v", statefile.ErrDamaged, checkTimeout)
	}
	said, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if !errors.As(err, &exit) || exit.ExitCode() == exitUnknown {
		return fmt.Errorf("%w: %s", err, said)
	}
	return fmt.Errorf("%w: its pages do not fit together: %s", statefile.ErrDamaged, said)
}

// The format of bbolt, which containerd's databases are in: two pages at the beginning describe the file, and are written in turn.
const (
	boltMagic, boltVersion = 0xed0cdaed, 2
	// boltMeta is where the description begins in its page, boltSum where in it the checksum is.
	boltMeta, boltSum = 16, 56
)

// checkDatabase reads the descriptions of a database and compares its size with them. It does not read the other pages, which each start
// would have to wait for.
func checkDatabase(path string) error {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
		return statefile.ErrDamaged
	}
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%w (%s)", statefile.ErrDamaged, info.Mode().Type())
	}
	needs := int64(-1)
	for page := range int64(2) {
		meta := make([]byte, boltSum+8)
		_, err := file.ReadAt(meta, page*int64(os.Getpagesize())+boltMeta)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if size, ok := parseMeta(meta); ok {
			needs = max(needs, size)
		}
	}
	switch {
	case needs < 0:
		return fmt.Errorf("%w: it has no valid description", statefile.ErrDamaged)
	case info.Size() < needs:
		return fmt.Errorf("%w: it has %d bytes of %d", statefile.ErrDamaged, info.Size(), needs)
	}
	return nil
}

// parseMeta returns how many bytes the database has at least, false if the description is not valid.
func parseMeta(meta []byte) (size int64, ok bool) {
	order := binary.NativeEndian
	sum := fnv.New64a()
	_, _ = sum.Write(meta[:boltSum]) // it does not fail
	if order.Uint32(meta) != boltMagic || order.Uint32(meta[4:]) != boltVersion || order.Uint64(meta[boltSum:]) != sum.Sum64() {
		return 0, false
	}
	// magic, version, page size, flags (4 bytes each), root and its sequence, free list, number of pages, transaction (8 each)
	return int64(order.Uint32(meta[8:])) * int64(order.Uint64(meta[40:])), true
}
