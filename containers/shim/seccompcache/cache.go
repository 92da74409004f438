package seccompcache

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/seccomp"
	"golang.org/x/sys/unix"
)

// maxFiles bounds a cache's directory. A node has a file for each profile that its containers have: a handful.
const maxFiles = 64

// headerSize is that of the magic, the checksum and two sizes.
const headerSize = len(magic) + 8 + 4 + 4

// Cache is the directory of the compiled profiles of a node. Only root may write to it. It is safe for concurrent use by several processes.
type Cache struct{ Dir string }

// File returns the file of a profile, which it makes if there is none.
func (c Cache) File(profile *configs.Seccomp) (string, error) {
	name, err := nameOf(profile)
	if err != nil {
		return "", fmt.Errorf("name a compiled seccomp profile: %w", err)
	}
	path := filepath.Join(c.Dir, name)
	if len(prefix)+len(path) >= unix.PathMax {
		return "", fmt.Errorf("name a compiled seccomp profile: %s is too long", path)
	}
	if data, err := os.ReadFile(path); err == nil && valid(data) {
		return path, nil
	}
	calls, program, err := compile(profile)
	if err != nil {
		return "", err
	}
	if err := c.write(path, encode(calls, program)); err != nil {
		return "", fmt.Errorf("keep a compiled seccomp profile: %w", err)
	}
	return path, nil
}

// nameOf is different for each profile, program and kernel.
func nameOf(profile *configs.Seccomp) (string, error) {
	var program unix.Stat_t
	if err := unix.Stat("/proc/self/exe", &program); err != nil {
		return "", &fs.PathError{Op: "stat", Path: "/proc/self/exe", Err: err}
	}
	var system unix.Utsname
	if err := unix.Uname(&system); err != nil {
		return "", fmt.Errorf("uname: %w", err)
	}
	major, minor, micro := seccomp.Version()
	hash := sha256.New()
	fmt.Fprintln(hash, program.Ino, program.Size, program.Mtim.Nano(), unix.ByteSliceToString(system.Release[:]), major, minor, micro)
	if err := json.NewEncoder(hash).Encode(profile); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", hash.Sum(nil)), nil
}

// encode returns the content of a file: see known.c.
func encode(calls, program []byte) []byte {
	data := append([]byte(magic), make([]byte, 8)...)
	data = binary.NativeEndian.AppendUint32(data, uint32(len(calls)))
	data = binary.NativeEndian.AppendUint32(data, uint32(len(program)))
	data = append(append(data, calls...), program...)
	binary.NativeEndian.PutUint64(data[len(magic):], checksum(data))
	return data
}

func checksum(data []byte) uint64 {
	sum := fnv.New64a()
	_, _ = sum.Write(data[len(magic)+8:])
	return sum.Sum64()
}

// valid reports whether a process will take a file with this content.
func valid(data []byte) bool {
	if len(data) <= headerSize || len(data) > largest || string(data[:len(magic)]) != magic {
		return false
	}
	return binary.NativeEndian.Uint64(data[len(magic):]) == checksum(data)
}

func (c Cache) write(path string, data []byte) error {
	if len(data) > largest {
		return fmt.Errorf("%s has %d bytes, more than %d", path, len(data), largest)
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return err
	}
	if err := c.prune(); err != nil {
		return err
	}
	file, err := os.CreateTemp(c.Dir, ".new-") // mode 0600
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name())
	}
	return err
}

// prune removes the oldest file of a full cache, and what an interrupted write has left counts, too.
func (c Cache) prune() error {
	entries, err := os.ReadDir(c.Dir)
	if err != nil || len(entries) < maxFiles {
		return err
	}
	var files []fs.FileInfo
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil { // else another has removed it
			files = append(files, info)
		}
	}
	if len(files) < maxFiles {
		return nil
	}
	oldest := slices.MinFunc(files, func(a, b fs.FileInfo) int { return cmp.Compare(a.ModTime().UnixNano(), b.ModTime().UnixNano()) })
	if err := os.Remove(filepath.Join(c.Dir, oldest.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
