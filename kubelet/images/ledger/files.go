package ledger

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
	pulling, pulled = "pulling", "pulled"
	filePrefix      = "sha256-"
	// maxFile bounds what is read of one file, in bytes: a record has at most some hundred Secrets.
	maxFile = 1 << 20
	// abandonAfter is how long an image may still appear that an earlier process began to pull: its runtime may have gone
	// on without it.
	abandonAfter = 10 * time.Minute

	kindIntent, kindRecord = "ImagePullIntent", "ImagePulledRecord"
)

// versions are those in which files are read; the first is written. They differ in nothing that is kept here.
var versions = []string{kubeletconfig.SchemeGroupVersion.String(), "kubelet.config.k8s.io/v1alpha1"}

// fileName is the name of the file about an image's name or id.
func fileName(about string) string {
	sum := sha256.Sum256([]byte(about))
	return filePrefix + hex.EncodeToString(sum[:])
}

// load reads the files, once. One that cannot be read counts as there without saying anything.
func (l *Ledger) load() error {
	l.mu.RLock()
	loaded := !l.loaded.IsZero()
	l.mu.RUnlock()
	if loaded {
		return nil
	}
	l.disk.Lock()
	defer l.disk.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.loaded.IsZero() {
		return nil
	}
	intents, err := l.files(pulling)
	if err != nil {
		return err
	}
	records, err := l.files(pulled)
	if err != nil {
		return err
	}
	for _, name := range intents {
		l.intents[name] = &intent{doubt: true}
	}
	for _, name := range records {
		record, err := l.readRecord(name)
		if err != nil {
			l.deps.Logger.Warn("the note of an image's credentials cannot be read: Pods have to pull the image again",
				"error", err)
		}
		l.records[name] = record
	}
	l.loaded = l.deps.Clock.Now()
	return nil
}

// files lists the files of one kind. What a crash in the middle of a write has left is removed.
func (l *Ledger) files(kind string) ([]string, error) {
	dir := filepath.Join(l.cfg.Dir, kind)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the notes of pulled images: %w", err)
	}
	var names []string
	for _, entry := range entries {
		switch name := entry.Name(); {
		case strings.HasPrefix(name, "."+filePrefix):
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				l.deps.Logger.Warn("removing a half-written note of an image failed", "error", err)
			}
		case strings.HasPrefix(name, filePrefix):
			names = append(names, name)
		}
	}
	return names, nil
}

func (l *Ledger) readRecord(name string) (*kubeletconfig.ImagePulledRecord, error) {
	path := filepath.Join(l.cfg.Dir, pulled, name)
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxFile {
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

func (l *Ledger) writeIntent(key, image string) error {
	return l.write(pulling, key, &kubeletconfig.ImagePullIntent{
		TypeMeta: metav1.TypeMeta{Kind: kindIntent, APIVersion: versions[0]}, Image: image,
	})
}

func (l *Ledger) writeRecord(key string, record *kubeletconfig.ImagePulledRecord) error {
	stamped := *record
	stamped.TypeMeta = metav1.TypeMeta{Kind: kindRecord, APIVersion: versions[0]}
	return l.write(pulled, key, &stamped)
}

// write replaces a file durably. The caller holds disk.
func (l *Ledger) write(kind, key string, content any) error {
	data, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("note an image: %w", err)
	}
	dir := filepath.Join(l.cfg.Dir, kind)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of notes of images: %w", err)
	}
	if err := atomicfile.Write(filepath.Join(dir, key), data, 0o600); err != nil {
		return fmt.Errorf("note an image: %w", err)
	}
	return nil
}

// remove removes a file, which need not be there. The caller holds disk.
func (l *Ledger) remove(kind, key string) error {
	if err := os.Remove(filepath.Join(l.cfg.Dir, kind, key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the note of an image: %w", err)
	}
	return nil
}

// Listed takes a list of all images of the runtime that was asked for at that moment. What an earlier process began to
// pull and is there now gets a record without credentials; records of images that are gone are removed.
func (l *Ledger) Listed(images []*runtimeapi.Image, asked time.Time) {
	if err := l.load(); err != nil {
		l.deps.Logger.Warn("the notes of pulled images are left as they are", "error", err)
		return
	}
	if intents, records := l.Kept(); intents == 0 && records == 0 {
		return
	}
	l.disk.Lock()
	defer l.disk.Unlock()
	l.settle(images, asked)
	there := make(map[string]bool, len(images))
	for _, image := range images {
		there[fileName(image.Id)] = true
	}
	for _, key := range l.stale(there, asked) {
		if err := l.remove(pulled, key); err != nil {
			l.deps.Logger.Warn("forgetting an image that is gone failed", "error", err)
			continue
		}
		l.mu.Lock()
		delete(l.records, key)
		l.mu.Unlock()
	}
}

// stale are the records of images that are not there and that nobody has pulled since the list was asked for.
func (l *Ledger) stale(there map[string]bool, asked time.Time) (keys []string) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for key, record := range l.records {
		at := l.loaded
		if record != nil {
			at = record.LastUpdatedTime.Time
		}
		if !there[key] && at.Before(asked) {
			keys = append(keys, key)
		}
	}
	return keys
}

// settle ends the intents of earlier processes. The caller holds disk.
func (l *Ledger) settle(images []*runtimeapi.Image, asked time.Time) {
	left := map[string]bool{}
	l.mu.RLock()
	for key, i := range l.intents {
		if i.pulls == 0 {
			left[key] = true
		}
	}
	old := asked.Sub(l.loaded) > abandonAfter
	l.mu.RUnlock()
	if len(left) == 0 {
		return
	}
	for _, image := range images {
		for _, names := range [][]string{image.RepoTags, image.RepoDigests} {
			for _, name := range names {
				key := fileName(name)
				if !left[key] {
					continue
				}
				if err := l.grant("", image.Id, nil); err != nil {
					l.deps.Logger.Warn("noting that an image was pulled failed", "image", name, "error", err)
					delete(left, key) // which keeps the intent
					continue
				}
				l.end(key)
			}
		}
	}
	for key := range left {
		if old {
			l.end(key)
		}
	}
}

// Kept is how many intents and records there are.
func (l *Ledger) Kept() (intents, records int) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.intents), len(l.records)
}
