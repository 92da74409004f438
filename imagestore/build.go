package imagestore

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// epoch is the time of everything in a built image: with it, the digest depends on the content alone.
var epoch = time.Unix(0, 0).UTC()

// BuildSpec says what an image built from one static binary holds. The zero value of an optional field leaves the
// field out of the image.
type BuildSpec struct {
	// Name is the image's full name with its tag, for example berth.local/demo:v1. Required.
	Name string
	// Binary is the content of the program, a static executable for Arch. Required. Build does not keep it.
	Binary []byte
	// Path is where the program stands in the image, and its entrypoint: an absolute path. Required.
	Path string
	// Arch is Go's name of the processor; the default is this machine's.
	Arch string
	// User is "UID", "UID:GID" or a name; the default is root.
	User string
	// Env is the environment, "NAME=value" each.
	Env []string
	// Ports are the ports that the program listens on, "8080/tcp" each. They inform, and open nothing.
	Ports []string
	// Labels are the image's labels.
	Labels map[string]string
}

// Built is an image in memory with the name that it is to have in a store.
type Built struct {
	// Name is the full name with tag.
	Name string
	// Image is the image; its digest is the one that the store will show.
	Image v1.Image
}

// ownPrefix begins the names of the image without which no Pod starts.
const ownPrefix = "berth.local/pause:"

// demoPrefix begins the names of the demo's image.
const demoPrefix = "berth.local/demo:"

// PauseSpec is the image of the sandbox process, berth.local/pause:version, from images/pause built as binary.
func PauseSpec(binary []byte, version string) BuildSpec {
	return BuildSpec{
		Name: PauseName(version), Binary: binary, Path: "/pause", User: "65535:65535",
		Labels: labels("pause", "holds the namespaces of a Berth pod", version),
	}
}

// DemoSpec is the image of the demo page, berth.local/demo:version, from images/demo built as binary. It runs as
// user and group 65532, so a Pod gives it a volume with fsGroup 65532.
func DemoSpec(binary []byte, version string) BuildSpec {
	return BuildSpec{
		Name: DemoName(version), Binary: binary, Path: "/demo", User: "65532:65532",
		Env: []string{"PORT=8080", "DATA_DIR=/data"}, Ports: []string{"8080/tcp"},
		Labels: labels("demo", "counts visits on a volume", version),
	}
}

// PauseName is the name of the sandbox image. It is a name only: nothing is ever pulled from berth.local.
func PauseName(version string) string { return ownPrefix + version }

// DemoName is the name of the demo image.
func DemoName(version string) string { return demoPrefix + version }

// isOwn reports whether an image is one that every cluster imports itself.
func isOwn(name string) bool {
	return strings.HasPrefix(name, ownPrefix) || strings.HasPrefix(name, demoPrefix)
}

func labels(title, description, version string) map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":       "berth " + title,
		"org.opencontainers.image.description": description,
		"org.opencontainers.image.version":     version,
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.source":      "https://github.com/berth-dev/berth",
	}
}

// Build assembles the image: one uncompressed layer with the program in it.
func Build(spec BuildSpec) (Built, error) {
	if err := spec.validate(); err != nil {
		return Built{}, fmt.Errorf("build image %q: %w", spec.Name, err)
	}
	name, err := fullName(spec.Name)
	if err != nil {
		return Built{}, fmt.Errorf("build image: %w", err)
	}
	arch := spec.Arch
	if arch == "" {
		arch = runtime.GOARCH
	}
	layer, err := layerOf(spec.Path, spec.Binary)
	if err != nil {
		return Built{}, fmt.Errorf("build image %q: make its layer: %w", spec.Name, err)
	}
	config := v1.Config{Entrypoint: []string{spec.Path}, User: spec.User, Env: spec.Env, Labels: maps.Clone(spec.Labels)}
	for _, port := range spec.Ports {
		if config.ExposedPorts == nil {
			config.ExposedPorts = map[string]struct{}{}
		}
		config.ExposedPorts[port] = struct{}{}
	}
	base := mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1)
	image, err := mutate.ConfigFile(base, &v1.ConfigFile{
		Architecture: arch, OS: "linux", Created: v1.Time{Time: epoch}, Config: config,
		RootFS: v1.RootFS{Type: "layers"},
	})
	if err == nil {
		image, err = mutate.Append(image, mutate.Addendum{
			Layer:   layer,
			History: v1.History{Created: v1.Time{Time: epoch}, CreatedBy: "berth"},
		})
	}
	if err != nil {
		return Built{}, fmt.Errorf("build image %q: %w", spec.Name, err)
	}
	return Built{Name: name, Image: image}, nil
}

func (s BuildSpec) validate() error {
	if len(s.Binary) == 0 {
		return errors.New("field Binary is empty")
	}
	if !path.IsAbs(s.Path) || path.Clean(s.Path) != s.Path || s.Path == "/" {
		return fmt.Errorf("field Path %q is not a clean absolute path of a file", s.Path)
	}
	for _, env := range s.Env {
		if name, _, ok := strings.Cut(env, "="); !ok || name == "" {
			return fmt.Errorf("field Env: %q is not NAME=value", env)
		}
	}
	return nil
}

// mountPoints are the directories and files of an image onto which a runtime mounts. Where an image lacks one, each of its
// containers gets it in its own file system, while it starts.
var mountPoints = []string{"dev/", "etc/", "etc/hostname", "etc/hosts", "etc/resolv.conf", "proc/", "sys/"}

// layerOf is a tar with the mount points, the program and the directories above it. It is not compressed: it never crosses a
// network, and hashing alone is what keeps assembling an image in the milliseconds.
func layerOf(name string, program []byte) (v1.Layer, error) {
	var buffer bytes.Buffer
	buffer.Grow(len(program) + 8192)
	archive := tar.NewWriter(&buffer)
	name = strings.TrimPrefix(name, "/")
	names := slices.DeleteFunc(slices.Clone(mountPoints), func(n string) bool { return n == name })
	for i, char := range name {
		if dir := name[:i+1]; char == '/' && !slices.Contains(names, dir) {
			names = append(names, dir)
		}
	}
	for _, n := range names {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: n, Mode: 0o644, ModTime: epoch}
		if strings.HasSuffix(n, "/") {
			header.Typeflag, header.Mode = tar.TypeDir, 0o755
		}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
	}
	file := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(program)), ModTime: epoch}
	if err := archive.WriteHeader(file); err != nil {
		return nil, err
	}
	if _, err := archive.Write(program); err != nil {
		return nil, err
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	return static.NewLayer(buffer.Bytes(), types.OCIUncompressedLayer), nil
}
