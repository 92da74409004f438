package packaging

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Config says what to package. All fields are required but those that say otherwise.
type Config struct {
	// Bin has the programs, as `make build` leaves them.
	Bin string
	// Reference has man pages, completions and the template of the configuration.
	Reference string
	// Documents are files for people: the SBOM, the notices, the README.
	Documents []string
	// Version is that of the packages, Arch Go's name of the processor.
	Version Version
	Arch    string
	// Time is that of every file in the packages.
	Time time.Time
	// Out is the directory for the packages.
	Out string
	// Formats are those to make: deb, rpm, tar. Optional: all if empty.
	Formats []string
}

func (c Config) validate() error {
	if c.Bin == "" || c.Reference == "" || c.Version.Base == "" || c.Out == "" || c.Time.IsZero() {
		return errors.New("packaging: Config.Bin, Reference, Version, Time and Out are required")
	}
	if c.Arch != "amd64" && c.Arch != "arm64" {
		return fmt.Errorf("packaging: architecture %q: want amd64 or arm64", c.Arch)
	}
	for _, format := range c.Formats {
		if !slices.Contains([]string{"deb", "rpm", "tar"}, format) {
			return fmt.Errorf("packaging: format %q: want deb, rpm or tar", format)
		}
	}
	return nil
}

// Build writes the packages and returns their paths. A file of the same name is replaced.
func Build(c Config) (paths []string, err error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	all, err := c.files()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.Out, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory for packages: %w", err)
	}
	for _, format := range []struct {
		kind, name string
		write      func(w io.Writer) error
	}{
		{"deb", fmt.Sprintf("berth_%s_%s.deb", c.Version, c.Arch), func(w io.Writer) error { return c.writeDeb(w, all) }},
		{"rpm", fmt.Sprintf("berth-%s-1.%s.rpm", c.Version, rpmArch[c.Arch]), func(w io.Writer) error { return c.writeRPM(w, all) }},
		{"tar", fmt.Sprintf("berth_%s_linux_%s.tar.gz", c.Version, c.Arch), func(w io.Writer) error { return c.writeTar(w, all) }},
	} {
		if len(c.Formats) > 0 && !slices.Contains(c.Formats, format.kind) {
			continue
		}
		path := filepath.Join(c.Out, format.name)
		if err := writeFile(path, format.write); err != nil {
			return nil, fmt.Errorf("make %s: %w", path, err)
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// writeFile replaces the file at path once its new content is complete.
func writeFile(path string, write func(w io.Writer) error) (err error) {
	file, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}()
	if err := errors.Join(write(file), file.Chmod(0o644), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}

// WriteChecksums writes SHA256SUMS of the packages in the directory, as sha256sum --check reads it.
func WriteChecksums(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list the packages: %w", err)
	}
	var lines []string
	for _, entry := range entries {
		name := entry.Name()
		if !entry.Type().IsRegular() || name == "SHA256SUMS" || strings.HasPrefix(name, ".") {
			continue
		}
		sum, err := hashFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		lines = append(lines, sum+"  "+name+"\n")
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[64:], b[64:]) })
	return writeFile(filepath.Join(dir, "SHA256SUMS"), func(w io.Writer) error {
		_, err := io.WriteString(w, strings.Join(lines, ""))
		return err
	})
}

func hashFile(path string) (sum string, err error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", fmt.Errorf("hash %s: %w", path, err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
