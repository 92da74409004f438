package csidriver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berth-dev/berth/internal/atomicfile"
	"github.com/berth-dev/berth/internal/statefile"
)

// metadataLimit is the largest size of the record of an item, in bytes.
const metadataLimit = 1 << 20

// metadata returns the record of an item. A damaged or lost one is rebuilt, because the image is what counts: a volume whose
// record is damaged is mounted like any other.
func (s *store) metadata(id string) (metadata, error) {
	m, err := s.readMetadata(id)
	if err == nil || errors.Is(err, errNotFound) {
		return m, err
	}
	s.repairing.Lock()
	defer s.repairing.Unlock()
	m, err = s.readMetadata(id)
	var unreadable *fs.PathError
	switch {
	case err == nil || errors.Is(err, errNotFound):
		return m, err
	case errors.As(err, &unreadable) && !errors.Is(err, statefile.ErrDamaged) && !errors.Is(err, fs.ErrNotExist):
		return m, fmt.Errorf("read %q: %w", id, err) // it may be readable again later
	}
	info, statErr := os.Stat(s.image(id))
	if statErr != nil {
		return m, fmt.Errorf("read %q: %w", id, errors.Join(err, statErr))
	}
	path := filepath.Join(s.dir(id), metadataName)
	statefile.SetAside(s.logger, path, err,
		"the image is intact; the name and the source of "+id+" are unknown until it is requested by its name again")
	s.logger.Warn("rebuilding the record of an image", "id", id, "error", err)
	m = metadata{Created: info.ModTime().UTC(), Rebuilt: true}
	if err := writeMetadata(s.dir(id), m); err != nil {
		s.logger.Error("failed to rebuild the record of an image; rebuilding it with each call", "id", id, "error", err)
	}
	return m, nil
}

// readMetadata reads the record of an item, errNotFound if there is no item.
func (s *store) readMetadata(id string) (metadata, error) {
	var m metadata
	data, err := statefile.Read(filepath.Join(s.dir(id), metadataName), metadataLimit)
	if errors.Is(err, fs.ErrNotExist) {
		if _, statErr := os.Stat(s.image(id)); statErr != nil {
			return m, fmt.Errorf("%q %w", id, errNotFound)
		}
	}
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return m, fmt.Errorf("decode %s: %w", metadataName, err)
	}
	if !m.Rebuilt && id != volumeID(m.Name) && id != snapshotID(m.Name) {
		return m, fmt.Errorf("decode %s: it is the record of %q", metadataName, m.Name)
	}
	if err := m.check(); err != nil {
		return metadata{}, fmt.Errorf("decode %s: %w", metadataName, err)
	}
	return m, nil
}

// check returns an error for values that the driver does not write.
func (m metadata) check() error {
	switch {
	case m.Source != "" && !idPattern.MatchString(m.Source):
		return fmt.Errorf("source %q is no volume or snapshot", m.Source)
	case m.Group != "" && !groupPattern.MatchString(m.Group):
		return fmt.Errorf("group %q is no group snapshot", m.Group)
	case m.Overcommit != 0 && m.Overcommit != unlimited && m.Overcommit < 1:
		return fmt.Errorf("overcommit %g is less than 1", m.Overcommit)
	case m.Limits.IOPS < 0 || m.Limits.Throughput < 0:
		return fmt.Errorf("a limit of its I/O is negative: %+v", m.Limits)
	}
	return nil
}

func writeMetadata(dir string, m metadata) error {
	data, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode %s: %w", metadataName, err)
	}
	return atomicfile.Write(filepath.Join(dir, metadataName), data, 0o600)
}

// adopt completes a rebuilt record with what a create request for it says, but when it was created. The caller holds the id.
func (s *store) adopt(it *item, m metadata) error {
	if !it.Rebuilt {
		return nil
	}
	m.Created, m.Shares = it.Created, true // it may share blocks: nothing says that it does not
	it.metadata = m
	if err := writeMetadata(s.dir(it.id), it.metadata); err != nil {
		return fmt.Errorf("complete the record of %q: %w", it.id, err)
	}
	return nil
}

// logUnreadable logs why an item is left out, once as long as the reason stays the same.
func (s *store) logUnreadable(id string, err error) {
	if last, said := s.unreadable.Swap(id, err.Error()); !said || last != err.Error() {
		s.logger.Error("volume or snapshot cannot be read; the others are not affected", "id", id, "error", err,
			"remedy", "repair the disk or restore the file from a backup")
	}
}
