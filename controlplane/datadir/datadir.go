// Package datadir locks a data directory for one process at a time, and refuses
// data of a newer version.
package datadir

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	utilversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/berth-dev/berth/controlplane/atomicfile"
)

const (
	lockFile    = "controlplane.lock"
	versionFile = "controlplane.json"
)

// Versions is what wrote a data directory.
type Versions struct {
	// Format counts changes of the directory's own layout.
	Format int `json:"format"`
	// Kubernetes and Etcd are versions such as 1.36.3. Only major and minor
	// decide: patch releases read each other's data.
	Kubernetes string `json:"kubernetes"`
	Etcd       string `json:"etcd"`
}

// Lock is the lock of a data directory.
type Lock struct{ file *os.File }

// Acquire creates dir if missing and locks it. The lock ends with Release or with
// the process. If another process holds it, the error names that process.
func Acquire(dir string) (*Lock, error) {
	if err := atomicfile.Dir(dir); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, lockFile)
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		atomicfile.SetAside(path, errors.New("not a regular file"), "the lock file is created again")
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data directory %q: %w", dir, err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(path) // only for the error: empty is fine
		err = fmt.Errorf("data directory %q is in use by %s: stop it first", dir, describe(holder, err))
		return nil, errors.Join(err, file.Close())
	}
	if err := writePID(file); err != nil {
		return nil, errors.Join(fmt.Errorf("lock data directory %q: %w", dir, err), file.Close())
	}
	return &Lock{file: file}, nil
}

// Release unlocks the directory.
func (l *Lock) Release() error {
	if err := l.file.Close(); err != nil {
		return fmt.Errorf("unlock data directory: %w", err)
	}
	return nil
}

// CheckVersion refuses data of a newer version than own, and returns what wrote the data; the zero value if that is not known. It must
// be called under the lock, before anything reads the data.
func CheckVersion(dir string, own Versions) (Versions, error) {
	path := filepath.Join(dir, versionFile)
	data, err := atomicfile.Read(path)
	var have Versions
	if err == nil {
		if err = json.Unmarshal(data, &have); err == nil {
			err = have.check()
		}
	}
	switch {
	case errors.Is(err, os.ErrNotExist):
		return Versions{}, nil
	case atomicfile.IsPassing(err):
		return Versions{}, fmt.Errorf("read version of data directory: %w", err)
	case err != nil: // etcd refuses its own data if it is newer
		atomicfile.SetAside(path, err, "the data is taken to be of this version")
		return Versions{}, nil
	}
	if err := own.canOpen(have); err != nil {
		return have, fmt.Errorf("data directory %q was written by a newer version: %w: use that version, or another --data-dir", dir, err)
	}
	return have, nil
}

// RecordVersion records that own writes the data from now on.
func RecordVersion(dir string, own Versions) error {
	data, err := json.Marshal(own)
	if err != nil {
		return fmt.Errorf("encode version of data directory: %w", err)
	}
	data = append(data, '\n')
	path := filepath.Join(dir, versionFile)
	if have, err := atomicfile.Read(path); err == nil && bytes.Equal(have, data) {
		return nil
	}
	return atomicfile.Write(path, data)
}

// check returns an error if the versions are none that Acquire has written.
func (v Versions) check() error {
	if v.Format < 1 {
		return fmt.Errorf("format %d", v.Format)
	}
	for _, text := range []string{v.Kubernetes, v.Etcd} {
		if _, err := utilversion.ParseGeneric(text); err != nil {
			return err
		}
	}
	return nil
}

func (v Versions) canOpen(have Versions) error {
	if have.Format > v.Format {
		return fmt.Errorf("it has format %d, this program knows up to %d", have.Format, v.Format)
	}
	for _, pair := range []struct{ name, own, have string }{
		{"Kubernetes", v.Kubernetes, have.Kubernetes}, {"etcd", v.Etcd, have.Etcd},
	} {
		own, err := utilversion.ParseGeneric(pair.own)
		if err != nil {
			return fmt.Errorf("parse own %s version: %w", pair.name, err)
		}
		other, err := utilversion.ParseGeneric(pair.have)
		if err != nil {
			return fmt.Errorf("parse the data's %s version: %w", pair.name, err)
		}
		if other.Major() > own.Major() || other.Major() == own.Major() && other.Minor() > own.Minor() {
			return fmt.Errorf("it has %s %s, this program %s", pair.name, pair.have, pair.own)
		}
	}
	return nil
}

func writePID(file *os.File) error {
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

func describe(holder []byte, err error) string {
	if pid := strings.TrimSpace(string(holder)); pid != "" && errors.Is(err, unix.EWOULDBLOCK) {
		return "process " + pid
	}
	return fmt.Sprintf("another process (%v)", err)
}
