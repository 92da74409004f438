package packaging

import (
	"bytes"
	"compress/gzip"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed files
var own embed.FS

// file is a file, a directory or a link in the packages.
type file struct {
	// to is its path on the machine.
	to string
	// source is the file with its content; data is that itself if source is empty.
	source string
	data   []byte
	// link is the target of a symbolic link.
	link string
	mode fs.FileMode
	// config says that an administrator may change it.
	config bool
}

const (
	libexec = "/usr/libexec/berth"
	docs    = "/usr/share/doc/berth"
)

// helpers are the programs beside berth: what `make build` makes.
func helpers() []string {
	return []string{
		"berth-controlplane", "berth-dns", "berth-isolate", "berth-supervisor", "kubectl", "containerd", "containerd-shim-runc-v2", "containerd-shim-berth-v1", "runc",
		"cni/berth", "cni/bridge", "cni/host-local", "cni/loopback", "cni/portmap", "images/pause", "images/demo",
	}
}

// files returns all that is installed, sorted by path.
func (c Config) files() ([]file, error) {
	all := []file{
		{to: "/usr/bin/berth", source: filepath.Join(c.Bin, "berth"), mode: 0o755},
		{to: "/usr/bin/kubectl-why", link: "berth"},
		{to: "/etc/berth/certs.d", mode: fs.ModeDir | 0o755},
	}
	for _, name := range helpers() {
		all = append(all, file{to: path.Join(libexec, name), source: filepath.Join(c.Bin, name), mode: 0o755})
	}
	for _, unit := range []string{"berth.service", "berth@.service"} {
		data, err := own.ReadFile("files/" + unit)
		if err != nil {
			return nil, err
		}
		all = append(all, file{to: "/usr/lib/systemd/system/" + unit, data: data, mode: 0o644})
	}
	reference, err := c.referenceFiles()
	if err != nil {
		return nil, err
	}
	all = append(all, reference...)
	for _, document := range c.Documents {
		data, err := compressed(document)
		if err != nil {
			return nil, err
		}
		all = append(all, file{to: path.Join(docs, filepath.Base(document)+".gz"), data: data, mode: 0o644})
	}
	copyright, err := own.ReadFile("files/copyright")
	if err != nil {
		return nil, err
	}
	all = append(all, file{to: path.Join(docs, "copyright"), data: copyright, mode: 0o644})
	for _, f := range all {
		if f.source == "" {
			continue
		}
		if info, err := os.Stat(f.source); err != nil || !info.Mode().IsRegular() {
			return nil, fmt.Errorf("program %s: run make build first: %w", f.source, errors.Join(err, errNotRegular(info)))
		}
	}
	slices.SortFunc(all, func(a, b file) int { return strings.Compare(a.to, b.to) })
	return all, nil
}

func errNotRegular(info fs.FileInfo) error {
	if info != nil && !info.Mode().IsRegular() {
		return errors.New("it is no regular file")
	}
	return nil
}

// referenceFiles returns the man pages, completions and the configuration.
func (c Config) referenceFiles() ([]file, error) {
	pages, err := filepath.Glob(filepath.Join(c.Reference, "man", "*.1"))
	if err != nil {
		return nil, fmt.Errorf("list the man pages: %w", err)
	}
	if len(pages) == 0 {
		return nil, fmt.Errorf("there are no man pages in %s: run berth reference first", c.Reference)
	}
	var all []file
	for _, page := range pages {
		data, err := compressed(page)
		if err != nil {
			return nil, err
		}
		all = append(all, file{to: "/usr/share/man/man1/" + filepath.Base(page) + ".gz", data: data, mode: 0o644})
	}
	for name, to := range map[string]string{
		"berth.bash": "/usr/share/bash-completion/completions/berth", "berth.zsh": "/usr/share/zsh/site-functions/_berth",
		"berth.fish": "/usr/share/fish/vendor_completions.d/berth.fish",
	} {
		all = append(all, file{to: to, source: filepath.Join(c.Reference, name), mode: 0o644})
	}
	head, err := own.ReadFile("files/config.head")
	if err != nil {
		return nil, err
	}
	template, err := os.ReadFile(filepath.Join(c.Reference, "config.yaml"))
	if err != nil {
		return nil, err
	}
	return append(all, file{to: "/etc/berth/config.yaml", data: append(head, template...), mode: 0o644, config: true}), nil
}

// compressed returns a file's content as gzip -9n writes it.
func compressed(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	writer, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := writer.Write(data); err != nil {
		return nil, fmt.Errorf("compress %s: %w", path, err)
	}
	if err := writer.Close(); err != nil {
		return nil, fmt.Errorf("compress %s: %w", path, err)
	}
	return out.Bytes(), nil
}
