package imagestore

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net/http"
	"strings"

	"cuelabs.dev/go/oci/ociregistry"
	"cuelabs.dev/go/oci/ociregistry/ociserver"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"k8s.io/utils/clock"
)

// maxManifest is the most that a manifest may have, which is what registries allow.
const maxManifest = 4 << 20

// PushHandler is a registry over HTTP (the distribution specification of OCI) whose images are those of the store: who pushes an image
// gives it to Pods. It needs a user and a password. Close ends it.
type PushHandler struct {
	// User and Password are what clients log in with. The password is random.
	User, Password string
	pushed         *pushed
	registry       http.Handler
}

// NewPushHandler returns a PushHandler for the store, which it does not close.
func (s *Store) NewPushHandler(options PushOptions) *PushHandler {
	options.MaxBytes = cmp.Or(options.MaxBytes, DefaultMaxBytes)
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	backend := &pushed{store: s, options: options, writing: make(map[string]bool)}
	return &PushHandler{
		User: "berth", Password: rand.Text(), pushed: backend,
		registry: ociserver.New(backend, &ociserver.Options{DisableReferrersAPI: true, WriteError: writeError}),
	}
}

// ServeHTTP implements http.Handler.
func (h *PushHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	user, password, _ := r.BasicAuth()
	if !same(user, h.User) || !same(password, h.Password) {
		w.Header().Set("WWW-Authenticate", `Basic realm="berth images serve"`)
		w.Header().Set("Docker-Distribution-API-Version", "registry/2.0")
		_ = ociregistry.WriteError(w, ociregistry.ErrUnauthorized)
		return
	}
	if strings.HasSuffix(r.URL.Path, "/manifests/") { // the library panics
		writeError(w, r, ociregistry.ErrManifestUnknown)
		return
	}
	if strings.Contains(r.URL.Path, "/manifests/") {
		r.Body = http.MaxBytesReader(w, r.Body, maxManifest)
	}
	h.registry.ServeHTTP(w, h.prepare(r))
}

// writeError writes an error to the client. The library's own about a manifest are the client's, which the library does not say.
func writeError(w http.ResponseWriter, _ *http.Request, err error) {
	for _, about := range []string{"invalid manifest JSON: ", "cannot read content: "} {
		if strings.HasPrefix(err.Error(), about) {
			err = fmt.Errorf("%w: %w", ociregistry.ErrManifestInvalid, err)
			break
		}
	}
	_ = ociregistry.WriteError(w, err) // the client has gone
}

// prepare returns a request with what the library does not pass on, the registry's name and whether it has the first bytes of an upload,
// and without the mount of a blob that the store does not have: that begins an upload, by the specification, where the library fails.
func (h *PushHandler) prepare(r *http.Request) *http.Request {
	ctx := context.WithValue(r.Context(), hostKey{}, r.Host)
	r = r.WithContext(context.WithValue(ctx, firstBytesKey{}, strings.HasPrefix(r.Header.Get("Content-Range"), "0-")))
	query := r.URL.Query()
	if mount := query.Get("mount"); mount != "" && r.Method == http.MethodPost {
		if _, err := h.pushed.describe(ctx, digest.Digest(mount)); errdefs.IsNotFound(err) {
			query.Del("mount")
			query.Del("from")
			address := *r.URL
			address.RawQuery = query.Encode()
			r.URL = &address
		}
	}
	return r
}

// same compares secrets without showing by the time that it takes where they differ.
func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// Close ends uploads that were not completed and releases what belongs to no image. No request may be served any more.
func (h *PushHandler) Close(ctx context.Context) error { return h.pushed.close(ctx) }
