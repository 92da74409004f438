package oci

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// epoch is the time of everything in an image.
var epoch = time.Unix(0, 0).UTC()

// Tree is the file system of one layer: what is added last under a name stands. The zero value is an empty layer.
// It is not safe for concurrent use.
type Tree struct {
	entries map[string]entry
}

type entry struct {
	header tar.Header
	data   []byte
}

// Dir adds a directory; mode is as chmod takes it, special bits among it. Parents come of themselves, with 0755.
func (t *Tree) Dir(name string, mode int64) {
	t.add(name, entry{header: tar.Header{Typeflag: tar.TypeDir, Mode: mode}})
}

// File adds a regular file owned by root. The tree keeps data.
func (t *Tree) File(name string, mode int64, data []byte) {
	t.add(name, entry{header: tar.Header{Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(data))}, data: data})
}

// Symlink adds a symbolic link; target is not looked at.
func (t *Tree) Symlink(name, target string) {
	t.add(name, entry{header: tar.Header{Typeflag: tar.TypeSymlink, Mode: 0o777, Linkname: target}})
}

// Copy adds the content of this machine's file source, links followed, as a regular file.
func (t *Tree) Copy(name string, mode int64, source string) error {
	data, err := os.ReadFile(source)
	if err != nil {
		return fmt.Errorf("add file %q to an image: %w", name, err)
	}
	t.File(name, mode, data)
	return nil
}

// Has says whether something was added under the name.
func (t *Tree) Has(name string) bool {
	_, ok := t.entries[clean(name)]
	return ok
}

func (t *Tree) add(name string, e entry) {
	if t.entries == nil {
		t.entries = make(map[string]entry)
	}
	t.entries[clean(name)] = e
}

// clean is the name as an archive writes it: without the leading slash.
func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// Layer is the tree as a plain tar, which is what an uncompressed layer is.
func (t *Tree) Layer() ([]byte, error) {
	var names []string
	for name := range t.entries {
		names = append(names, name)
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			names = append(names, dir)
		}
	}
	slices.Sort(names)
	var buffer bytes.Buffer
	archive := tar.NewWriter(&buffer)
	for _, name := range slices.Compact(names) {
		e, ok := t.entries[name]
		if !ok {
			e.header = tar.Header{Typeflag: tar.TypeDir, Mode: 0o755}
		}
		header := e.header
		header.Name, header.ModTime = name, epoch
		if header.Typeflag == tar.TypeDir {
			header.Name += "/"
		}
		if err := archive.WriteHeader(&header); err != nil {
			return nil, fmt.Errorf("write layer entry %q: %w", name, err)
		}
		if _, err := archive.Write(e.data); err != nil {
			return nil, fmt.Errorf("write layer entry %q: %w", name, err)
		}
	}
	if err := archive.Close(); err != nil {
		return nil, fmt.Errorf("end layer: %w", err)
	}
	return buffer.Bytes(), nil
}
