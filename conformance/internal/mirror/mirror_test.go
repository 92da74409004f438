package mirror_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-dev/berth/conformance/internal/mirror"
	"github.com/berth-dev/berth/conformance/internal/oci"
)

func serve(t *testing.T) (*httptest.Server, *mirror.Handler) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "layout")
	image := oci.Image{Name: "example.test/group/tool:1.2", Layers: [][]byte{[]byte("layer")}}
	if err := oci.Write(dir, []oci.Image{image}); err != nil {
		t.Fatal(err)
	}
	handler, err := mirror.New(oci.Open(dir))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server, handler
}

func TestAPullFindsManifestConfigAndLayer(t *testing.T) {
	server, _ := serve(t)
	response, body := get(t, server.URL+"/v2/group/tool/manifests/1.2")
	if response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != ocispec.MediaTypeImageManifest {
		t.Fatalf("manifest by tag: %s, type %q", response.Status, response.Header.Get("Content-Type"))
	}
	byDigest, _ := get(t, server.URL+"/v2/group/tool/manifests/"+response.Header.Get("Docker-Content-Digest"))
	if byDigest.StatusCode != http.StatusOK {
		t.Errorf("manifest by digest: %s", byDigest.Status)
	}
	var manifest ocispec.Manifest
	if err := json.Unmarshal(body, &manifest); err != nil {
		t.Fatal(err)
	}
	for _, part := range append(manifest.Layers, manifest.Config) {
		response, data := get(t, server.URL+"/v2/group/tool/blobs/"+part.Digest.String())
		if response.StatusCode != http.StatusOK || int64(len(data)) != part.Size {
			t.Errorf("blob %s: %s, %d bytes, want %d", part.Digest, response.Status, len(data), part.Size)
		}
	}
}

func TestUnknownPathsAreRefused(t *testing.T) {
	server, _ := serve(t)
	for path, want := range map[string]int{
		"/v2/":                           http.StatusOK,
		"/v2/group/tool/manifests/9":     http.StatusNotFound,
		"/v2/other/manifests/1.2":        http.StatusNotFound,
		"/v2/group/tool/blobs/../../x":   http.StatusNotFound,
		"/v2/group/tool/blobs/sha256:00": http.StatusNotFound,
		"/other":                         http.StatusNotFound,
	} {
		if response, _ := get(t, server.URL+path); response.StatusCode != want {
			t.Errorf("%s: %s, want %d", path, response.Status, want)
		}
	}
	response, err := http.Post(server.URL+"/v2/group/tool/blobs/uploads/", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("a push got %s", response.Status)
	}
}

func TestHostsNamesTheMirrorForEachRegistry(t *testing.T) {
	_, handler := serve(t)
	dir := t.TempDir()
	if err := handler.WriteHosts(dir, "127.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "example.test", "hosts.toml"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(data), "server = \"http://127.0.0.1:1\"\n"; got != want {
		t.Errorf("hosts.toml is %q, want %q", got, want)
	}
}

func get(t *testing.T, url string) (*http.Response, []byte) {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, body
}
