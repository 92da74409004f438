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
	"github.com/berth-dev/berth/internal/statefile"
	"github.com/berth-dev/berth/kubelet/images/imagename"
)

const (
	intentsDir, recordsDir = "pulling", "pulled"
	filePrefix             = "sha256-"
	// maxFileSize bounds what is read of one file, in bytes: a record has at most some hundred Secrets.
	maxFileSize = 1 << 20
	// intentTimeout is how long an image may still appear after an earlier process began to pull it: the runtime may
	// have continued the pull.
	intentTimeout = 10 * time.Minute

	kindIntent, kindRecord = "ImagePullIntent", "ImagePulledRecord"
)

// versions are the API versions that are read; the first is written. They do not differ in the stored fields.
var versions = []string{kubeletconfig.SchemeGroupVersion.String(), "kubelet.config.k8s.io/v1alpha1"}

// fileName returns the name of the file for an image's name or id.
func fileName(subject string) string {
	sum := sha256.Sum256([]byte(subject))
	return filePrefix + hex.EncodeToString(sum[:])
}

// load reads the files, once. A record that cannot be read is kept as nil.
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
		key, err := m.adoptIntent(name)
		if err != nil {
			return err // the next call reads them again
		}
		m.intents[key] = &intent{uncertain: true}
	}
	for _, name := range records {
		record, err := m.readRecord(name)
		if statefile.IsPassing(err) {
			return err // the next call reads them again
		}
		if err != nil {
			// It stays in place, because an image without a record could be used by every Pod.
			m.deps.Logger.Error("image pull record is damaged; Pods have to pull the image again", "error", err,
				"remedy", "none is needed: the next pull replaces the record, and keeps the damaged one beside it")
		}
		m.records[name] = record
	}
	m.loaded = m.deps.Clock.Now()
	return nil
}

// listFiles returns the files of one kind. It removes those of an interrupted write.
func (m *Manager) listFiles(kind string) ([]string, error) {
	dir := filepath.Join(m.config.Dir, kind)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read image pull records: %w", err)
	}
	var names []string
	for _, entry := range entries {
		switch name := entry.Name(); {
		case strings.HasPrefix(name, "."+filePrefix):
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				m.deps.Logger.Warn("failed to remove partly written image pull record", "error", err)
			}
		case strings.HasPrefix(name, filePrefix) && !statefile.IsAside(name):
			names = append(names, name)
		}
	}
	return names, nil
}

func (m *Manager) readRecord(name string) (*kubeletconfig.ImagePulledRecord, error) {
	path := filepath.Join(m.config.Dir, recordsDir, name)
	data, err := statefile.Read(path, maxFileSize)
	if err != nil {
		return nil, fmt.Errorf("read image pull record: %w", err)
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
		return nil, fmt.Errorf("read %q: it is the record of %q, whose file has another name", path, record.ImageRef)
	}
	return record, nil
}

// adoptIntent gives an intent the file that this kubelet's own intent for the image would have, and returns its name. Upstream's kubelet names the
// image as the container does, perhaps without its registry and tag, and no image of the runtime has such a name. A damaged intent stays in
// its file. The caller holds fileMu.
func (m *Manager) adoptIntent(name string) (string, error) {
	data, err := statefile.Read(filepath.Join(m.config.Dir, intentsDir, name), maxFileSize)
	if statefile.IsPassing(err) {
		return "", fmt.Errorf("read image pull intent: %w", err)
	}
	var found kubeletconfig.ImagePullIntent
	if err != nil || json.Unmarshal(data, &found) != nil || found.Kind != kindIntent || fileName(found.Image) != name {
		return name, nil
	}
	full := imagename.Full(found.Image)
	key := fileName(full)
	if key == name {
		return name, nil
	}
	err = m.writeIntent(key, full)
	if err == nil {
		err = m.remove(intentsDir, name)
	}
	if err != nil {
		m.deps.Logger.Warn("failed to rename an image pull intent of another kubelet", "image", found.Image, "error", err)
	}
	return key, nil
}

func (m *Manager) writeIntent(key, image string) error {
	return m.write(intentsDir, key, &kubeletconfig.ImagePullIntent{
		TypeMeta: metav1.TypeMeta{Kind: kindIntent, APIVersion: versions[0]}, Image: image,
	})
}

func (m *Manager) writeRecord(key string, record *kubeletconfig.ImagePulledRecord) error {
	typed := *record
	typed.TypeMeta = metav1.TypeMeta{Kind: kindRecord, APIVersion: versions[0]}
	return m.write(recordsDir, key, &typed)
}

// write replaces a file durably. The caller holds fileMu.
func (m *Manager) write(kind, key string, content any) error {
	data, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("write image pull record: %w", err)
	}
	dir := filepath.Join(m.config.Dir, kind)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create directory of image pull records: %w", err)
	}
	if err := atomicfile.Write(filepath.Join(dir, key), data, 0o600); err != nil {
		return fmt.Errorf("write image pull record: %w", err)
	}
	return nil
}

// keepDamaged gives a damaged record, which is about to be replaced, a second name.
func (m *Manager) keepDamaged(key string) error {
	path := filepath.Join(m.config.Dir, recordsDir, key)
	if info, err := os.Lstat(path); err != nil || info.IsDir() {
		return nil // atomicfile keeps a directory
	}
	if err := os.Link(path, path+".damaged"); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("keep a damaged image pull record: %w", err)
	}
	return nil
}

// remove removes a file if it exists. The caller holds fileMu.
func (m *Manager) remove(kind, key string) error {
	if err := os.Remove(filepath.Join(m.config.Dir, kind, key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove image pull record: %w", err)
	}
	return nil
}

// Reconcile compares the records with a list of all images of the runtime, requested at listedAt. An image that an
// earlier process began to pull and that exists now gets a record without credentials; records of images that no longer
// exist are removed.
func (m *Manager) Reconcile(images []*runtimeapi.Image, listedAt time.Time) {
	if err := m.load(); err != nil {
		m.deps.Logger.Warn("failed to read image pull records; not reconciling them", "error", err)
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
			m.deps.Logger.Warn("failed to remove image pull record", "error", err)
			continue
		}
		m.mu.Lock()
		delete(m.records, key)
		m.mu.Unlock()
	}
}

// staleRecords returns the records of images that do not exist and were not pulled after the list was requested.
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

// finishOldIntents finishes the intents of earlier processes. The caller holds fileMu.
func (m *Manager) finishOldIntents(images []*runtimeapi.Image, listedAt time.Time) {
	pending, imported := map[string]bool{}, map[string]string{}
	m.mu.RLock()
	for key, i := range m.intents {
		if i.active == 0 {
			pending[key], imported[key] = true, i.imported
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
				if !pending[key] || imported[key] == image.Id {
					continue
				}
				if err := m.updateRecord("", image.Id, nil); err != nil {
					m.deps.Logger.Warn("failed to record an image pull", "image", name, "error", err)
					delete(pending, key) // keeps the intent
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

// Counts returns the number of intents and records.
func (m *Manager) Counts() (intents, records int) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return len(m.intents), len(m.records)
}
