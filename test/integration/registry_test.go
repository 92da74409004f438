//go:build integration

package integration

import (
	"bytes"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/imagestore"
)

const registryUser, registryPassword = "tenant", "secret-of-the-tenant"

// privateRegistry is a registry on the loopback device that requires its login for everything. containerd uses no TLS for
// registries there.
type privateRegistry struct {
	t    testing.TB
	http *httptest.Server

	mu      sync.Mutex // guards all below
	away    bool
	gate    chan struct{} // if not nil, what images consist of waits for it
	waiting chan struct{} // has a value when a request waits
}

func newRegistry(t testing.TB) *privateRegistry {
	r := &privateRegistry{t: t, waiting: make(chan struct{}, 100)}
	store := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	r.http = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { r.serve(w, req, store) }))
	t.Cleanup(func() {
		r.release()
		r.http.CloseClientConnections()
		r.http.Close()
	})
	return r
}

func (r *privateRegistry) serve(w http.ResponseWriter, req *http.Request, store http.Handler) {
	user, password, _ := req.BasicAuth()
	right := subtle.ConstantTimeCompare([]byte(user+":"+password), []byte(registryUser+":"+registryPassword)) == 1
	r.mu.Lock()
	away, gate := r.away, r.gate
	r.mu.Unlock()
	switch {
	case away:
		http.Error(w, "away", http.StatusServiceUnavailable)
		return
	case !right:
		w.Header().Set("WWW-Authenticate", `Basic realm="tests"`)
		http.Error(w, "who are you?", http.StatusUnauthorized)
		return
	}
	if gate != nil && strings.Contains(req.URL.Path, "/blobs/") {
		r.waiting <- struct{}{}
		select {
		case <-gate:
		case <-req.Context().Done():
			return
		}
	}
	store.ServeHTTP(w, req)
}

// setAway makes the registry unavailable or available.
func (r *privateRegistry) setAway(away bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away = away
}

// hold suspends pulls until release.
func (r *privateRegistry) hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gate = make(chan struct{})
}

func (r *privateRegistry) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gate != nil {
		close(r.gate)
		r.gate = nil
	}
}

// address is the registry's host and port.
func (r *privateRegistry) address() string { return r.http.Listener.Addr().(*net.TCPAddr).String() }

// push adds an image of apt's static busybox to the registry, and returns its full name.
func (r *privateRegistry) push(repository string) string {
	r.t.Helper()
	name := r.address() + "/" + repository + ":v1"
	busybox, err := os.ReadFile("/bin/busybox")
	require.NoError(r.t, err, "apt-get install busybox-static (make deps does)")
	built, err := imagestore.Build(imagestore.BuildSpec{
		Name: name, Binary: busybox, Path: "/bin/busybox", Labels: map[string]string{"repository": repository},
	})
	require.NoError(r.t, err)
	config, err := built.Image.RawConfigFile()
	require.NoError(r.t, err)
	digest, err := built.Image.ConfigName()
	require.NoError(r.t, err)
	r.blob(repository, digest, bytes.NewReader(config))
	layers, err := built.Image.Layers()
	require.NoError(r.t, err)
	for _, layer := range layers {
		content, err := layer.Compressed()
		require.NoError(r.t, err)
		digest, err := layer.Digest()
		require.NoError(r.t, err)
		r.blob(repository, digest, content)
	}
	manifest, err := built.Image.RawManifest()
	require.NoError(r.t, err)
	kind, err := built.Image.MediaType()
	require.NoError(r.t, err)
	r.send(http.MethodPut, "/v2/"+repository+"/manifests/v1", string(kind), bytes.NewReader(manifest))
	return name
}

func (r *privateRegistry) blob(repository string, digest v1.Hash, content io.Reader) {
	r.send(http.MethodPost, "/v2/"+repository+"/blobs/uploads/?digest="+digest.String(), "application/octet-stream", content)
}

func (r *privateRegistry) send(method, path, kind string, content io.Reader) {
	r.t.Helper()
	request, err := http.NewRequestWithContext(r.t.Context(), method, r.http.URL+path, content)
	require.NoError(r.t, err)
	request.Header.Set("Content-Type", kind)
	request.SetBasicAuth(registryUser, registryPassword)
	response, err := r.http.Client().Do(request)
	require.NoError(r.t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(r.t, err)
	require.Equal(r.t, http.StatusCreated, response.StatusCode, "%s %s: %s", method, path, body)
}

// login is a docker configuration with a login for the registry.
func (r *privateRegistry) login(user, password string) string {
	auth := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	return fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, r.address(), auth)
}
