//go:build integration

package containerd_test

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	registry "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/imagestore"
)

// imageFor returns an image of some layers for a processor.
func imageFor(t *testing.T, architecture string) v1.Image {
	t.Helper()
	image, err := random.Image(64<<10, 2)
	require.NoError(t, err)
	config, err := image.ConfigFile()
	require.NoError(t, err)
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", architecture
	image, err = mutate.ConfigFile(image, config)
	require.NoError(t, err)
	return image
}

// servePushes serves pushes to the store and returns the registry's name and how to log in.
func servePushes(t *testing.T, store *imagestore.Store, options imagestore.PushOptions) (host string, login remote.Option, stop func()) {
	t.Helper()
	handler := store.NewPushHandler(options)
	server := httptest.NewServer(handler)
	login = remote.WithAuth(&authn.Basic{Username: handler.User, Password: handler.Password})
	return strings.TrimPrefix(server.URL, "http://"), login, func() {
		server.Close()
		require.NoError(t, handler.Close(t.Context()))
	}
}

// TestPushes has the library of crane push images into a containerd, which has them for Pods then, and nothing of pushes that fail.
func TestPushes(t *testing.T) {
	n := newFixture(t)
	n.start(t)
	store, err := imagestore.Open(t.Context(), n.Socket())
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	nothing := n.holdings(t)
	names := func() (all []string) {
		list, err := store.List(t.Context())
		require.NoError(t, err)
		for _, image := range list {
			all = append(all, image.Name)
		}
		return all
	}
	var pushed, dropped []string
	host, login, stop := servePushes(t, store, imagestore.PushOptions{MaxBytes: 1 << 20,
		Pushed: func(name string) { pushed = append(pushed, name) }, Dropped: func(name string) { dropped = append(dropped, name) }})
	push := func(to string, image v1.Image, options ...remote.Option) error {
		ref, err := name.ParseReference(host+"/"+to, name.Insecure)
		require.NoError(t, err)
		return remote.Write(ref, image, append([]remote.Option{login, remote.WithContext(t.Context())}, options...)...)
	}

	ours := imageFor(t, "amd64")
	require.ErrorContains(t, push("app:v1", ours, remote.WithAuth(authn.Anonymous)), "401 Unauthorized")
	require.ErrorContains(t, push("app:v1", ours, remote.WithAuth(&authn.Basic{Username: "berth", Password: "guess"})), "401 Unauthorized")
	require.ErrorContains(t, push("app:v1", imageFor(t, "s390x")), "image is for another platform: wanted linux/amd64")
	require.ErrorContains(t, push("berth.local/pause:v1", ours), "the name is that of an image of the cluster itself")
	huge, err := random.Image(2<<20, 1)
	require.NoError(t, err)
	require.ErrorContains(t, push("app:v1", huge), "more than 1048576 bytes")
	require.Empty(t, names())

	require.NoError(t, push("app:v1", ours))
	dgst, err := ours.Digest()
	require.NoError(t, err)
	require.NoError(t, push("ghcr.io/acme/app:v2", ours), "its blobs exist")
	require.Equal(t, []string{host + "/app:v1", "ghcr.io/acme/app:v2"}, pushed)
	require.ElementsMatch(t, []string{host + "/app:v1", host + "/app@" + dgst.String(), "ghcr.io/acme/app:v2", "ghcr.io/acme/app@" + dgst.String()}, names())

	// As ko pushes a bill of materials, and cosign a signature; a chart is no part of an image.
	bill := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	bill, err = mutate.Append(bill, mutate.Addendum{Layer: static.NewLayer([]byte("{}"), "text/spdx+json")})
	require.NoError(t, err)
	attached := "app:" + strings.Replace(dgst.String(), ":", "-", 1) + ".sbom"
	require.NoError(t, push(attached, bill))
	require.Equal(t, []string{host + "/" + attached}, dropped)
	require.ErrorContains(t, push("app:bill", bill), "image is for another platform")
	require.Len(t, names(), 4)

	// What was pushed can be pulled again by who has the password.
	ref, err := name.ParseReference(host+"/app:v1", name.Insecure)
	require.NoError(t, err)
	back, err := remote.Image(ref, login)
	require.NoError(t, err)
	backDigest, err := back.Digest()
	require.NoError(t, err)
	require.Equal(t, dgst, backDigest)
	layers, err := back.Layers()
	require.NoError(t, err)
	data, err := layers[0].Compressed()
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, data) // which checks the digest
	require.NoError(t, err)

	several := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: imageFor(t, "amd64"), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}},
		mutate.IndexAddendum{Add: imageFor(t, "arm64"), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "arm64"}}})
	ref, err = name.ParseReference(host+"/several:v1", name.Insecure)
	require.NoError(t, err)
	require.NoError(t, remote.WriteIndex(ref, several, login))
	dgst, err = several.Digest()
	require.NoError(t, err)
	require.Contains(t, names(), host+"/several@"+dgst.String())
	require.Len(t, names(), 6, "the parts of the index have no names: %v", names())

	uploadAsDockerDoes(t, store)
	for _, name := range names() {
		require.NoError(t, store.Remove(t.Context(), name))
	}
	stop()
	require.Equal(t, nothing, n.holdings(t), "nothing is left of pushes once their images are removed")
	n.stop(t)
	n.clean(t)
}

// uploadAsDockerDoes uploads a blob in two parts, with a wrong digest first.
func uploadAsDockerDoes(t *testing.T, store *imagestore.Store) {
	t.Helper()
	handler := store.NewPushHandler(imagestore.PushOptions{})
	server := httptest.NewServer(handler)
	defer func() {
		server.Close()
		require.NoError(t, handler.Close(t.Context()))
	}()
	do := func(method, url, body string, header map[string]string, want int) *http.Response {
		request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		require.NoError(t, err)
		request.SetBasicAuth(handler.User, handler.Password)
		for key, value := range header {
			request.Header.Set(key, value)
		}
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, want, response.StatusCode, "%s %s: %s", method, url, text)
		return response
	}
	begin := func() string {
		return server.URL + do(http.MethodPost, server.URL+"/v2/app/blobs/uploads/", "", nil, http.StatusAccepted).Header.Get("Location")
	}
	sum := func(text string) string { return digest.FromString(text).String() }
	at := begin()
	do(http.MethodPatch, at, "hello ", nil, http.StatusAccepted)
	do(http.MethodPut, at+"?digest="+sum("other"), "world", nil, http.StatusBadRequest)
	do(http.MethodPut, at+"?digest="+sum("hello world"), "", nil, http.StatusNotFound)
	at = begin()
	do(http.MethodPatch, at, "hello ", nil, http.StatusAccepted)
	do(http.MethodPatch, at, "gap", map[string]string{"Content-Range": "9-11"}, http.StatusRequestedRangeNotSatisfiable)
	do(http.MethodPatch, at, "world", map[string]string{"Content-Range": "6-10"}, http.StatusAccepted)
	do(http.MethodPut, at+"?digest="+sum("hello world"), "", nil, http.StatusCreated)
	do(http.MethodHead, server.URL+"/v2/app/blobs/"+sum("hello world"), "", nil, http.StatusOK)
	begin() // and nothing more
}

// TestSavedImagesRunElsewhere saves images, removes them, and imports the archive again.
func TestSavedImagesRunElsewhere(t *testing.T) {
	n := newFixture(t)
	n.start(t)
	store, err := imagestore.Open(t.Context(), n.Socket())
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	var archive bytes.Buffer
	_, err = store.Export(t.Context(), &archive)
	require.ErrorIs(t, err, imagestore.ErrNothing)
	n.importImages(t)
	_, err = store.Export(t.Context(), &archive)
	require.ErrorIs(t, err, imagestore.ErrNothing, "the cluster's own are everywhere")
	for _, name := range []string{"example.org/one:v1", "example.org/two:v1"} {
		_, err := store.Import(t.Context(), bytes.NewReader(archiveOf(t, name, 1<<20)), imagestore.ImportOptions{})
		require.NoError(t, err)
	}
	_, err = store.Export(t.Context(), &archive, "example.org/absent:v1")
	require.ErrorIs(t, err, imagestore.ErrNotFound)
	require.Zero(t, archive.Len())
	before := n.holdings(t)
	saved, err := store.Export(t.Context(), &archive)
	require.NoError(t, err)
	require.Equal(t, []string{"example.org/one:v1", "example.org/two:v1"}, saved)
	require.Equal(t, before, n.holdings(t))
	list, err := store.List(t.Context())
	require.NoError(t, err)

	var one bytes.Buffer
	saved, err = store.Export(t.Context(), &one, "example.org/two:v1", "example.org/two:v1")
	require.NoError(t, err)
	require.Equal(t, []string{"example.org/two:v1"}, saved)
	require.Less(t, one.Len(), archive.Len())
	for _, name := range []string{"example.org/one:v1", "example.org/two:v1"} {
		require.NoError(t, store.Remove(t.Context(), name))
	}
	_, err = store.Import(t.Context(), &archive, imagestore.ImportOptions{})
	require.NoError(t, err)
	again, err := store.List(t.Context())
	require.NoError(t, err)
	require.Equal(t, list, again, "the same digests under the same names")
	n.stop(t)
	n.clean(t)
}

// TestMirrors pulls an image of a registry that does not exist through the mirror that is configured for it.
func TestMirrors(t *testing.T) {
	n := newFixture(t)
	requests := make(chan string, 1000)
	mirror := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests <- r.Method + " " + r.URL.String()
		mirror.ServeHTTP(w, r)
	}))
	defer server.Close()
	ref, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://")+"/team/app:v1", name.Insecure)
	require.NoError(t, err)
	require.NoError(t, remote.Write(ref, imageFor(t, "amd64")))

	n.RegistryConfig = t.TempDir()
	dir := filepath.Join(n.RegistryConfig, "registry.invalid")
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "hosts.toml"),
		fmt.Appendf(nil, "server = \"https://registry.invalid\"\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", server.URL), 0o644))
	require.NoError(t, n.Write())
	n.start(t)
	for len(requests) > 0 {
		<-requests
	}
	_, err = runtimeapi.NewImageServiceClient(n.conn).PullImage(t.Context(), &runtimeapi.PullImageRequest{
		Image: &runtimeapi.ImageSpec{Image: "registry.invalid/team/app:v1"},
	})
	require.NoError(t, err)
	require.Contains(t, <-requests, "/v2/team/app/manifests/v1?ns=registry.invalid")
	store, err := imagestore.Open(t.Context(), n.Socket())
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	list, err := store.List(t.Context())
	require.NoError(t, err)
	require.Equal(t, "registry.invalid/team/app:v1", list[0].Name)
	n.stop(t)
	n.clean(t)
}
