package elfdeps

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Root is a directory with unpacked packages: a file system that nothing runs in.
type Root string

// Path is the name of a file of the root on this machine, with symbolic links resolved inside the root.
func (r Root) Path(name string) (string, error) {
	// A link may name its target absolutely, which means: from the root.
	for range 16 {
		path := filepath.Join(string(r), name)
		info, err := os.Lstat(path)
		if err != nil {
			return "", fmt.Errorf("find %q among the unpacked packages: %w", name, err)
		}
		if info.Mode()&os.ModeSymlink == 0 {
			return path, nil
		}
		target, err := os.Readlink(path)
		if err != nil {
			return "", fmt.Errorf("find %q among the unpacked packages: %w", name, err)
		}
		if filepath.IsAbs(target) {
			name = target
		} else {
			name = filepath.Join(filepath.Dir(name), target)
		}
	}
	return "", fmt.Errorf("find %q among the unpacked packages: too many links", name)
}

// Needs are the names, from the root's top, of the loader and of every shared library that the program wants,
// those that libraries want included. A static program needs none.
func (r Root) Needs(program string) ([]string, error) {
	seen := map[string]bool{}
	var found []string
	queue := []string{program}
	for len(queue) > 0 {
		name := queue[0]
		queue = queue[1:]
		loader, libraries, err := r.read(name)
		if err != nil {
			return nil, fmt.Errorf("libraries of %q: %w", program, err)
		}
		if loader != "" && !seen[loader] {
			seen[loader] = true
			found = append(found, loader)
		}
		for _, library := range libraries {
			path, err := r.library(library)
			if err != nil {
				return nil, fmt.Errorf("libraries of %q: %w", program, err)
			}
			if !seen[path] {
				seen[path] = true
				found = append(found, path)
				queue = append(queue, path)
			}
		}
	}
	return found, nil
}

func (r Root) read(name string) (loader string, libraries []string, err error) {
	path, err := r.Path(name)
	if err != nil {
		return "", nil, err
	}
	file, err := elf.Open(path)
	if err != nil {
		return "", nil, fmt.Errorf("read %q: %w", name, err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP {
			data := make([]byte, segment.Filesz)
			if _, err := segment.ReadAt(data, 0); err != nil {
				return "", nil, fmt.Errorf("read loader of %q: %w", name, err)
			}
			loader = strings.TrimRight(string(data), "\x00")
		}
	}
	libraries, err = file.ImportedLibraries()
	if err != nil {
		return "", nil, fmt.Errorf("read libraries of %q: %w", name, err)
	}
	return loader, libraries, nil
}

// library looks where Debian's loader looks by itself.
func (r Root) library(name string) (string, error) {
	for _, pattern := range []string{"/lib/*-linux-gnu*", "/usr/lib/*-linux-gnu*", "/lib", "/usr/lib"} {
		matches, err := filepath.Glob(filepath.Join(string(r), pattern, name))
		if err != nil {
			return "", fmt.Errorf("find library %q: %w", name, err)
		}
		if len(matches) > 0 {
			return strings.TrimPrefix(matches[0], string(r)), nil
		}
	}
	return "", fmt.Errorf("library %q is not among the unpacked packages: add its package to deps.sh", name)
}
