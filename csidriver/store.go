package csidriver

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/csidriver/iolimit"
	"github.com/berth-dev/berth/internal/atomicfile"
	"github.com/berth-dev/berth/internal/filecopy"
	"github.com/berth-dev/berth/internal/filelock"
)

const (
	volumePrefix   = "vol-"
	snapshotPrefix = "snap-"
	imageName      = "disk.img"
	metadataName   = "meta.json"
	// formattingName marks a volume whose filesystem is being created.
	formattingName = "formatting"
)

var (
	idPattern = regexp.MustCompile(`^(vol|snap)-[0-9a-f]{40}$`)
	// errNotFound says that a volume or snapshot does not exist.
	errNotFound = errors.New("does not exist")
)

// metadata is what the image itself does not record.
type metadata struct {
	// Name is that of the create request.
	Name string `json:"name"`
	// Source is the id of the volume or snapshot that the image was copied from, "" if none.
	Source string `json:"source,omitempty"`
	// Created is when the image was complete.
	Created time.Time `json:"created"`
	// Group is the id of the group snapshot that the snapshot is of, GroupSources are the ids of all of its volumes.
	Group        string   `json:"group,omitempty"`
	GroupSources []string `json:"groupSources,omitempty"`
	terms
	// Limits are those of the volume's I/O.
	Limits iolimit.Limits `json:"limits,omitzero"`
	// Shares says that other images may have blocks of the image, because it was copied, or is a copy, by reflink.
	Shares bool `json:"shares,omitempty"`
	// Rebuilt says that the record was lost, and that only Created is known, until the volume is requested by its name again.
	Rebuilt bool `json:"rebuilt,omitempty"`
}

// item is a volume or a snapshot on disk.
type item struct {
	metadata
	id string
	// size is the image's size in bytes; it is the volume's capacity.
	size int64
	// allocated is how many bytes of it use disk space.
	allocated int64
}

// mayShare reports whether other images may have blocks of this one.
func (it *item) mayShare() bool { return it.Shares || it.Source != "" || it.Rebuilt }

// store manages the images below its root. It changes an item only for a caller that holds the item's id (see inflight).
type store struct {
	root   string
	logger *slog.Logger
	// keepFree is how many bytes of the disk are not for volumes.
	keepFree int64
	// reflinks: the file system copies images by sharing their blocks. Set by open.
	reflinks bool

	// repairing is held while a damaged record is rebuilt.
	repairing sync.Mutex
	// unreadable has the errors of items that were logged, by id.
	unreadable sync.Map

	// mu guards reserved: bytes reserved for images that are being created or expanded, which do not count yet.
	mu       sync.Mutex
	reserved int64
}

// removeMark removes a file that marks a volume, durably. That there is none is no error.
func removeMark(path string) error {
	err := os.Remove(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(path))
}

// volumeID is the id of the volume of that name.
func volumeID(name string) string { return volumePrefix + hash(name) }

// snapshotID is the id of the snapshot of that name.
func snapshotID(name string) string { return snapshotPrefix + hash(name) }

func hash(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:20])
}

func isVolumeID(id string) bool {
	return idPattern.MatchString(id) && id[:len(volumePrefix)] == volumePrefix
}
func isSnapshotID(id string) bool { return idPattern.MatchString(id) && !isVolumeID(id) }

func (s *store) volumes() string   { return filepath.Join(s.root, "volumes") }
func (s *store) snapshots() string { return filepath.Join(s.root, "snapshots") }
func (s *store) tmp() string       { return filepath.Join(s.root, "tmp") }

// dir is the directory of an item. The id must be one that isVolumeID or isSnapshotID knows.
func (s *store) dir(id string) string {
	if isSnapshotID(id) {
		return filepath.Join(s.snapshots(), id)
	}
	return filepath.Join(s.volumes(), id)
}

func (s *store) image(id string) string { return filepath.Join(s.dir(id), imageName) }

// open creates the directories, locks the root for this process and removes unfinished images.
func (s *store) open() (unlock func(), err error) {
	for _, dir := range []string{s.root, s.volumes(), s.snapshots(), s.tmp()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("create root: %w", err)
		}
	}
	root, err := filelock.AcquireDir(s.root)
	var held *filelock.HeldError
	if errors.As(err, &held) {
		return nil, fmt.Errorf("another driver runs on root %q (%s): stop it, or choose another root", s.root, held.Holder())
	}
	if err != nil {
		return nil, fmt.Errorf("lock root: %w", err)
	}
	left, err := os.ReadDir(s.tmp())
	for _, entry := range left {
		err = errors.Join(err, os.RemoveAll(filepath.Join(s.tmp(), entry.Name())))
	}
	if err != nil { // they only use disk space; the next start tries again
		s.logger.Error("failed to remove unfinished images", "dir", s.tmp(), "error", err)
	}
	if s.reflinks, err = s.hasReflinks(); err != nil {
		s.reflinks = true // then images that may share blocks are known
		s.logger.Warn("failed to check whether the disk has reflinks; assuming that it has", "root", s.root, "error", err)
	}
	return func() { root.Close() }, nil
}

// hasReflinks tries a reflink. On a disk that is full it fails.
func (s *store) hasReflinks() (linked bool, err error) {
	dir, err := os.MkdirTemp(s.tmp(), "reflink-")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var files [2]*os.File
	for i := range files {
		if files[i], err = os.Create(filepath.Join(dir, strconv.Itoa(i))); err != nil {
			return false, err
		}
		defer files[i].Close()
	}
	if _, err = files[1].Write(make([]byte, sizeAlignment)); err != nil {
		return false, err
	}
	return filecopy.Reflink(files[0], files[1])
}

// get returns an item, errNotFound if there is none.
func (s *store) get(id string) (*item, error) {
	if !idPattern.MatchString(id) {
		return nil, fmt.Errorf("%q %w", id, errNotFound)
	}
	meta, err := s.metadata(id)
	if err != nil {
		return nil, err
	}
	it := &item{metadata: meta, id: id}
	var stat unix.Stat_t
	err = unix.Stat(s.image(id), &stat)
	if errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("%q %w", id, errNotFound) // removed since
	}
	if err != nil {
		return nil, fmt.Errorf("read %q: %w", id, &os.PathError{Op: "stat", Path: s.image(id), Err: err})
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("read %q: %s is not a regular file: restore it from a backup", id, s.image(id))
	}
	it.size, it.allocated = stat.Size, stat.Blocks*512
	return it, nil
}

// list returns all items below dir (volumes or snapshots), sorted by id. It leaves out an item that cannot be read, so that it
// does not affect the others, and logs that once.
func (s *store) list(dir string) ([]*item, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	var items []*item
	for _, entry := range entries {
		it, err := s.get(entry.Name())
		if errors.Is(err, errNotFound) {
			continue // removed meanwhile, or not ours
		}
		if err != nil {
			s.logUnreadable(entry.Name(), err)
			continue
		}
		items = append(items, it)
	}
	slices.SortFunc(items, func(a, b *item) int {
		switch {
		case a.id < b.id:
			return -1
		case a.id > b.id:
			return 1
		}
		return 0
	})
	return items, nil
}

// make creates an item: fill gets the empty image, to copy into it and to set its size.
func (s *store) make(id string, m metadata, fill func(image *os.File) error) error {
	dir, err := os.MkdirTemp(s.tmp(), id+"-")
	if err != nil {
		return fmt.Errorf("create %q: %w", id, err)
	}
	defer os.RemoveAll(dir) // fails to find it once it has been renamed
	image, err := os.OpenFile(filepath.Join(dir, imageName), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("create %q: %w", id, err)
	}
	err = fill(image)
	if err == nil {
		err = image.Sync()
	}
	if err = errors.Join(err, image.Close()); err != nil {
		return fmt.Errorf("create image of %q: %w", id, err)
	}
	if err := writeMetadata(dir, m); err != nil {
		return fmt.Errorf("create %q: %w", id, err)
	}
	if err := os.Rename(dir, s.dir(id)); err != nil {
		return fmt.Errorf("create %q: %w", id, err)
	}
	return atomicfile.SyncDir(filepath.Dir(s.dir(id)))
}

// remove removes an item. A missing one is no error.
func (s *store) remove(id string) error {
	trash := filepath.Join(s.tmp(), id+"-removed")
	if err := os.RemoveAll(trash); err != nil { // of a former item of that id, whose removal failed
		return fmt.Errorf("remove %q: %w", id, err)
	}
	err := os.Rename(s.dir(id), trash)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove %q: %w", id, err)
	}
	if err := os.RemoveAll(trash); err != nil {
		return fmt.Errorf("remove %q: %w", id, err)
	}
	return atomicfile.SyncDir(filepath.Dir(s.dir(id)))
}

// grow expands the image. An error leaves its size as it is.
func (s *store) grow(it *item, size int64) error {
	image, err := os.OpenFile(s.image(it.id), os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("grow %q: %w", it.id, err)
	}
	if it.Preallocate {
		if err = s.preallocate(image, size, false); err != nil {
			err = errors.Join(err, image.Truncate(it.size))
		}
	}
	if err == nil {
		err = image.Truncate(size)
	}
	if err == nil {
		err = image.Sync()
	}
	if err = errors.Join(err, image.Close()); err != nil {
		return fmt.Errorf("grow %q: %w", it.id, err)
	}
	return nil
}

// markShared records that other images may have blocks of this one.
func (s *store) markShared(it *item) error {
	if it.Shares {
		return nil
	}
	marked := it.metadata
	marked.Shares = true
	if err := writeMetadata(s.dir(it.id), marked); err != nil {
		return fmt.Errorf("record that %q is copied: %w", it.id, err)
	}
	it.metadata = marked
	return nil
}
