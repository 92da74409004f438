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
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/statefile"
)

// registriesDir is the directory below Root that people may have put descriptions of registries into.
const registriesDir = "certs.d"

// SetAsideDamaged sets containerd's directory aside if one of the databases there is none, or a part of one: containerd would not start with it. What is
// then in its place is empty: images are imported or pulled, and containers created, again. It sets aside, too, what is no file in the place
// of the pod network's configuration. Nothing is deleted. No containerd may run.
func (c Config) SetAsideDamaged(ctx context.Context, logger *slog.Logger) error {
	statefile.SetAsideUnlessFile(logger, filepath.Join(c.CNIConfDir, networkFile), "the configuration of the pod network is written again")
	files, err := filepath.Glob(filepath.Join(c.Root, "io.containerd.*", "*.db"))
	if err != nil {
		return err
	}
	for _, file := range files {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		cause := checkDatabase(file)
		if cause == nil || errors.Is(cause, fs.ErrNotExist) {
			continue
		}
		if statefile.IsPassing(cause) {
			return fmt.Errorf("check containerd's database %s: %w", file, cause)
		}
		aside := statefile.SetAside(logger, c.Root, fmt.Errorf("database %s: %w", file, cause),
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
	return nil
}

// The format of bbolt, which containerd's databases are in: two pages at the beginning describe the file, and are written in turn.
const (
	boltMagic, boltVersion = 0xed0cdaed, 2
	// boltMeta is where the description begins in its page, boltSum where in it the checksum is.
	boltMeta, boltSum = 16, 56
)

// checkDatabase reads the descriptions of a database and compares its size with them. It does not read the other pages: bbolt itself may not
// come to an end where these are damaged.
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
