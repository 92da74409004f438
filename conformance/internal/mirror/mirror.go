package mirror

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-dev/berth/conformance/internal/oci"
)

// Handler answers the pull half of the distribution protocol for the layout's images. An image is found by its name
// without the registry's host, so one handler stands for all hosts. It is safe for concurrent use.
type Handler struct {
	layout oci.Layout
	// tags is "repository:tag", host left out, to the manifest.
	tags map[string]ocispec.Descriptor
	// types is what each manifest's digest has for a media type.
	types map[digest.Digest]string
	hosts []string
}

var _ http.Handler = (*Handler)(nil)

// New reads the layout's index.
func New(layout oci.Layout) (*Handler, error) {
	manifests, err := layout.Manifests()
	if err != nil {
		return nil, err
	}
	h := &Handler{layout: layout, tags: make(map[string]ocispec.Descriptor), types: make(map[digest.Digest]string)}
	seen := make(map[string]bool)
	for name, descriptor := range manifests {
		host, rest, ok := strings.Cut(name, "/")
		if !ok {
			return nil, fmt.Errorf("image name %q has no registry", name)
		}
		h.tags[rest] = descriptor
		h.types[descriptor.Digest] = descriptor.MediaType
		if !seen[host] {
			seen[host] = true
			h.hosts = append(h.hosts, host)
		}
	}
	return h, nil
}

// WriteHosts configures containerd, whose directory for registries is dir, to use only the mirror at address for every
// registry that an image of the layout names.
func (h *Handler) WriteHosts(dir, address string) error {
	for _, host := range h.hosts {
		path := filepath.Join(dir, host)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return fmt.Errorf("announce mirror: %w", err)
		}
		content := fmt.Sprintf("server = \"http://%s\"\n", address)
		if err := os.WriteFile(filepath.Join(path, "hosts.toml"), []byte(content), 0o644); err != nil {
			return fmt.Errorf("announce mirror: %w", err)
		}
	}
	return nil
}

// ServeHTTP answers GET and HEAD of /v2/, of manifests by tag or digest, and of blobs.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, ok := strings.CutPrefix(r.URL.Path, "/v2/")
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		fail(w, http.StatusMethodNotAllowed, "UNSUPPORTED", "this registry is read-only")
	case !ok:
		fail(w, http.StatusNotFound, "UNSUPPORTED", "only /v2/ is served")
	case path == "":
		w.WriteHeader(http.StatusOK)
	default:
		h.serve(w, r, path)
	}
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request, path string) {
	if i := strings.LastIndex(path, "/manifests/"); i >= 0 {
		repository, reference := path[:i], path[i+len("/manifests/"):]
		wanted, err := digest.Parse(reference)
		if err != nil {
			wanted = h.tags[repository+":"+reference].Digest
		}
		mediaType, ok := h.types[wanted]
		if !ok {
			fail(w, http.StatusNotFound, "MANIFEST_UNKNOWN", "no such image: "+repository+":"+reference)
			return
		}
		h.file(w, r, wanted, mediaType)
		return
	}
	if i := strings.LastIndex(path, "/blobs/"); i >= 0 {
		wanted, err := digest.Parse(path[i+len("/blobs/"):])
		if err == nil {
			h.file(w, r, wanted, "application/octet-stream")
			return
		}
	}
	fail(w, http.StatusNotFound, "NAME_UNKNOWN", "no such path")
}

func (h *Handler) file(w http.ResponseWriter, r *http.Request, wanted digest.Digest, mediaType string) {
	path := h.layout.BlobPath(wanted)
	if _, err := os.Stat(path); err != nil {
		fail(w, http.StatusNotFound, "BLOB_UNKNOWN", "no such blob: "+wanted.String())
		return
	}
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Docker-Content-Digest", wanted.String())
	http.ServeFile(w, r, path)
}

// fail answers as the distribution protocol wants errors worded.
func fail(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	body := map[string]any{"errors": []map[string]string{{"code": code, "message": message}}}
	_ = json.NewEncoder(w).Encode(body) // a client that is gone needs no answer
}
