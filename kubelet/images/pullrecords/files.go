package pullrecords

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/atomicfile"
)

const (
	intentsDir, recordsDir = "pulling", "pulled"
	filePrefix             = "sha256-"
	// maxFileSize bounds what is read of one file, in bytes: a record has at most some hundred Secrets.
	maxFileSize = 1 << 20
	// intentTimeout is how long an image may still appear that an earlier process began to pull: its runtime may have gone
	// on without it.
	intentTimeout = 10 * time.Minute

	kindIntent, kindRecord = "ImagePullIntent", "ImagePulledRecord"
)

// versions are those in which files are read; the first is written. They differ in nothing that is kept here.
var versions = []string{kubeletconfig.SchemeGroupVersion.String(), "kubelet.config.k8s.io/v1alpha1"}

// fileName is the name of the file about an image's name or id.
func fileName(subject string) string {
	sum := sha256.Sum256([]byte(subject))
	return filePrefix + hex.EncodeToString(sum[:])
}

// load reads the files, once. One that cannot be read counts as there without saying anything.
func (m *Manager) load() error {
	m.mu.RLock()
	loaded := !m.loaded.IsZero()
	m.mu.RUnlock()
	if loaded {
		return nil
	}
	m.fileMu.Lock()
	defer m.fileMu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.loaded.IsZero() {
		return nil
	}
	intents, err := m.listFiles(intentsDir)
	if err != nil {
		return err
	}
	records, err := m.listFiles(recordsDir)
	if err != nil {
		return err
	}
	for _, name := range intents {
		m.intents[name] = &intent{uncertain: true}
	}
	for _, name := range records {
		record, err := m.readRecord(name)
		if err != nil {
			m.deps.Logger.Warn("the note of an image's credentials cannot be read: Pods have to pull the image again",
				"error", err)
		}
		m.records[name] = record
	}
	m.loaded = m.deps.Clock.Now()
	return nil
}

// listFiles lists the files of one kind. What a crash in the middle of a write has left is removed.
func (m *Manager) listFiles(kind string) ([]string, error) {
	dir := filepath.Join(m.config.Dir, kind)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the notes of pulled images: %w", err)
	}
	var names []string
	for _, entry := range entries {
		switch name := entry.Name(); {
		case strings.HasPrefix(name, "."+filePrefix):
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				m.deps.Logger.Warn("removing a half-written note of an image failed", "error", err)
			}
		case strings.HasPrefix(name, filePrefix):
			names = append(names, name)
		}
	}
	return names, nil
}

func (m *Manager) readRecord(name string) (*kubeletconfig.ImagePulledRecord, error) {
	path := filepath.Join(m.config.Dir, recordsDir, name)
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxFileSize {
		return nil, errors.Join(fmt.Errorf("read %q: it is not the file it should be", path), err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the note of an image: %w", err)
	}
	record := &kubeletconfig.ImagePulledRecord{}
	if err := json.Unmarshal(data, record); err != nil {
		return nil, fmt.Errorf("read %q: %w", path, err)
	}
	if record.Kind != kindRecord || record.APIVersion != versions[0] && record.APIVersion != versions[1] {
		return nil, fmt.Errorf("read %q: %s of version %q: want %s of one of %v", path, record.Kind, record.APIVersion,
			kindRecord, versions)
	}
	if fileName(record.ImageRef) != name {
		return nil, fmt.Errorf("read %q: it is about %q, whose file has another name", path, record.ImageRef)
	}
	return record, nil
}

func (m *Manager) writeIntent(key, image string) error {
	return m.write(intentsDir, key, &kubeletconfig.ImagePullIntent{
		TypeMeta: metav1.TypeMeta{Kind: kindIntent, APIVersion: versions[0]}, Image: image,
	})
}

func (m *Manager) writeRecord(key string, record *kubeletconfig.ImagePulledRecord) error {
	stamped := *record
	stamped.TypeMeta = metav1.TypeMeta{Kind: kindRecord, APIVersion: versions[0]}
	return m.write(recordsDir, key, &stamped)
}

// write replaces a file durably. The caller holds disk.
func (m *Manager) write(kind, key string, content any) error {
	data, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("note an image: %w", err)
	}
	dir := filepath.Join(m.config.Dir, kind)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of notes of images: %w", err)
	}
	if err := atomicfile.Write(filepath.Join(dir, key), data, 0o600); err != nil {
		return fmt.Errorf("note an image: %w", err)
	}
	return nil
}

// remove removes a file, which need not be there. The caller holds disk.
func (m *Manager) remove(kind, key string) error {
	if err := os.Remove(filepath.Join(m.config.Dir, kind, key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the note of an image: %w", err)
	}
	return nil
}

// Reconcile takes a list of all images of the runtime that was asked for at that moment. What an earlier process began to
// pull and is there now gets a record without credentials; records of images that are gone are removed.
func (m *Manager) Reconcile(images []*runtimeapi.Image, listedAt time.Time) {
	if err := m.load(); err != nil {
		m.deps.Logger.Warn("the notes of pulled images are left as they are", "error", err)
		return
	}
	if intents, records := m.Counts(); intents == 0 && records == 0 {
		return
	}
	m.fileMu.Lock()
	defer m.fileMu.Unlock()
	m.finishOldIntents(images, listedAt)
	present := make(map[string]bool, len(images))
	for _, image := range images {
		present[fileName(image.Id)] = true
	}
	for _, key := range m.staleRecords(present, listedAt) {
		if err := m.remove(recordsDir, key); err != nil {
			m.deps.Logger.Warn("forgetting an image that is gone failed", "error", err)
			continue
		}
		m.mu.Lock()
		delete(m.records, key)
		m.mu.Unlock()
	}
}

// staleRecords are the records of images that are not there and that nobody has pulled since the list was asked for.
func (m *Manager) staleRecords(present map[string]bool, listedAt time.Time) (keys []string) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for key, record := range m.records {
		at := m.loaded
		if record != nil {
			at = record.LastUpdatedTime.Time
		}
		if !present[key] && at.Before(listedAt) {
			keys = append(keys, key)
		}
	}
	return keys
}

// finishOldIntents ends the intents of earlier processes. The caller holds disk.
func (m *Manager) finishOldIntents(images []*runtimeapi.Image, listedAt time.Time) {
	pending := map[string]bool{}
	m.mu.RLock()
	for key, i := range m.intents {
		if i.active == 0 {
			pending[key] = true
		}
	}
	old := listedAt.Sub(m.loaded) > intentTimeout
	m.mu.RUnlock()
	if len(pending) == 0 {
		return
	}
	for _, image := range images {
		for _, names := range [][]string{image.RepoTags, image.RepoDigests} {
			for _, name := range names {
				key := fileName(name)
				if !pending[key] {
					continue
				}
				if err := m.updateRecord("", image.Id, nil); err != nil {
					m.deps.Logger.Warn("noting that an image was pulled failed", "image", name, "error", err)
					delete(pending, key) // which keeps the intent
					continue
				}
				m.finishPull(key)
			}
		}
	}
	for key := range pending {
		if old {
			m.finishPull(key)
		}
	}
}

// Counts is how many intents and records there are.
func (m *Manager) Counts() (intents, records int) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return len(m.intents), len(m.records)
}
