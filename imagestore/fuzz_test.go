package imagestore

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/stretchr/testify/require"
)

// noImages is a store of images that has none, and gets none.
type noImages struct{ images.Store }

func (noImages) Get(context.Context, string) (images.Image, error) {
	return images.Image{}, errdefs.ErrNotFound
}

// FuzzPush has a client make an arbitrary request, after one that begins an upload: what is wrong with it is the client's error, and a blob that
// the registry has afterwards has its digest.
func FuzzPush(f *testing.F) {
	const manifest = `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"digest":"sha256:1"},"layers":[null]}`
	blob := digest.FromString("ab").String()
	f.Add("PUT", "team/app/manifests/v1", "", "application/vnd.oci.image.manifest.v1+json", "berth.example:5000", manifest)
	f.Add("PUT", "team/app/manifests/"+blob, "", "application/vnd.oci.image.index.v1+json", "h", `{"manifests":[{"digest":"x"}]}`)
	f.Add("PUT", "team/app/manifests/sha256-"+strings.Repeat("0", 64)+".sig", "", "application/vnd.oci.image.manifest.v1+json", "h", manifest)
	f.Add("PATCH", "UPLOAD", "0-1", "", "h", "ab")
	f.Add("PATCH", "UPLOAD", "5--9", "", "h", "ab")
	f.Add("PUT", "UPLOAD?digest="+blob, "", "application/octet-stream", "h", "ab")
	f.Add("PUT", "UPLOAD?digest=sha256:x", "00-1", "", "h", "ab")
	f.Add("POST", "a/blobs/uploads/?mount="+blob+"&from=b", "", "", "..", "")
	f.Add("POST", "a/blobs/uploads/?digest="+blob, "", "", "h/i", strings.Repeat("x", 1<<10))
	f.Add("GET", "a/blobs/"+blob, "bytes=1-9223372036854775807", "", "", "")
	f.Add("DELETE", "../a/manifests/:", "", "", "h", "")
	client, err := containerd.New("", containerd.WithServices(containerd.WithContentStore(contentStore(f)),
		containerd.WithLeasesService(noLeases{}), containerd.WithImageStore(noImages{})))
	require.NoError(f, err)
	handler := (&Store{client: client}).NewPushHandler(PushOptions{MaxBytes: 1 << 9})
	serve := func(ctx context.Context, method, path, ranges, kind, host, body string) *httptest.ResponseRecorder {
		r, err := http.NewRequestWithContext(ctx, method, "http://registry/v2/"+path, strings.NewReader(body))
		if err != nil {
			return nil
		}
		r.Host = host
		r.SetBasicAuth(handler.User, handler.Password)
		for name, value := range map[string]string{"Content-Range": ranges, "Range": ranges, "Content-Type": kind} {
			if value != "" {
				r.Header.Set(name, value)
			}
		}
		response := httptest.NewRecorder()
		handler.ServeHTTP(response, r)
		return response
	}
	f.Fuzz(func(t *testing.T, method, path, ranges, kind, host, body string) {
		begun := serve(t.Context(), http.MethodPost, "team/app/blobs/uploads/", "", "", "h", "")
		require.Equal(t, http.StatusAccepted, begun.Code)
		_, upload, _ := strings.Cut(begun.Header().Get("Location"), "/v2/")
		response := serve(t.Context(), method, strings.Replace(path, "UPLOAD", upload, 1), ranges, kind, host, body)
		if response == nil {
			return
		}
		require.Less(t, response.Code, 500, "%s", response.Body)
		if response.Code == http.StatusCreated {
			require.LessOrEqual(t, len(body), 1<<9)
		}
		if dgst := digest.FromString(body); response.Code == http.StatusCreated && strings.Contains(path, dgst.String()) {
			got := serve(t.Context(), http.MethodGet, "team/app/blobs/"+dgst.String(), "", "", "h", "")
			require.Equal(t, http.StatusOK, got.Code)
			require.True(t, bytes.Equal([]byte(body), got.Body.Bytes()))
		}
	})
}
