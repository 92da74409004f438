package imagestore

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/opencontainers/go-digest"
	"github.com/stretchr/testify/require"
)

// noLeases has leases that hold nothing: a content store without containerd collects nothing.
type noLeases struct{ leases.Manager }

func (noLeases) Create(context.Context, ...leases.Opt) (leases.Lease, error) {
	return leases.Lease{ID: "a"}, nil
}

func (noLeases) AddResource(context.Context, leases.Lease, leases.Resource) error { return nil }

func (noLeases) Delete(context.Context, leases.Lease, ...leases.DeleteOpt) error { return nil }

// pushServer is a registry with containerd's content store and without its other services.
func pushServer(t *testing.T) (address string, handler *PushHandler) {
	client, err := containerd.New("", containerd.WithServices(
		containerd.WithContentStore(contentStore(t)), containerd.WithLeasesService(noLeases{})))
	require.NoError(t, err)
	handler = (&Store{client: client}).NewPushHandler(PushOptions{})
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		server.Close()
		require.NoError(t, handler.Close(context.Background()))
	})
	return server.URL, handler
}

func TestUploads(t *testing.T) {
	address, handler := pushServer(t)
	request := func(method, path, contentRange, body string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, address+path, strings.NewReader(body))
		require.NoError(t, err)
		r.SetBasicAuth(handler.User, handler.Password)
		if contentRange != "" {
			r.Header.Set("Content-Range", contentRange)
		}
		response, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response
	}
	const uploads = "/v2/team/app/blobs/uploads/"
	content := "a blob in two parts"
	blob := digest.FromString(content).String()

	// A blob that the registry lacks cannot be mounted: the client uploads it.
	begun := request(http.MethodPost, uploads+"?mount="+blob+"&from=team/base", "", "")
	require.Equal(t, http.StatusAccepted, begun.StatusCode)
	upload := begun.Header.Get("Location")
	require.NotEmpty(t, upload)

	require.Equal(t, http.StatusRequestedRangeNotSatisfiable, request(http.MethodPatch, upload, "6-18", content[6:]).StatusCode, "before the first")
	require.Equal(t, http.StatusAccepted, request(http.MethodPatch, upload, "0-5", content[:6]).StatusCode)
	require.Equal(t, http.StatusRequestedRangeNotSatisfiable, request(http.MethodPatch, upload, "0-5", content[:6]).StatusCode, "a second time")
	require.Equal(t, http.StatusAccepted, request(http.MethodPatch, upload, "6-18", content[6:]).StatusCode)
	require.Equal(t, http.StatusCreated, request(http.MethodPut, upload+"?digest="+blob, "", "").StatusCode)

	require.Equal(t, http.StatusCreated, request(http.MethodPost, uploads+"?mount="+blob+"&from=team/base", "", "").StatusCode)
	require.Equal(t, http.StatusOK, request(http.MethodHead, "/v2/team/app/blobs/"+blob, "", "").StatusCode)
}
