// Package remote carries timeline's records over a unix socket, from a running berth to `berth explain`.
// The socket's file mode is its access control: only its owner may read.
package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/timeline"
)

// Handler answers GET /v1/records/{uid} with the record as JSON, or 404.
func Handler(rec *timeline.Recorder) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/records/{uid}", func(w http.ResponseWriter, r *http.Request) {
		record, ok := rec.Record(types.UID(r.PathValue("uid")))
		if !ok {
			http.Error(w, "no record of this object", http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(record) // the reader went away: nobody is left to tell
	})
	return mux
}

// Listen makes the socket, replacing one that a killed process left. The caller holds the cluster's lock, so no
// live process can be behind the old one.
func Listen(socket string) (net.Listener, error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("replace socket %s: %w", socket, err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", socket, err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("protect socket %s: %w", socket, err), listener.Close())
	}
	return listener, nil
}

// Client reads records from a socket. It is safe for concurrent use.
type Client struct{ http http.Client }

// NewClient makes a Client of the socket; nothing is dialled before the first question.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", socket)
	}
	return &Client{http: http.Client{Transport: &http.Transport{DialContext: dial}}}
}

// maxRecord bounds an answer; a record's stages are bounded, so a longer one is not an answer.
const maxRecord = 4 << 20

// Record returns the object's record, false if there is none. An error means that no berth answers there.
func (c *Client) Record(ctx context.Context, uid types.UID) (timeline.Record, bool, error) {
	var record timeline.Record
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://berth/v1/records/"+string(uid), http.NoBody)
	if err != nil {
		return record, false, fmt.Errorf("ask for the record of %q: %w", uid, err)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return record, false, fmt.Errorf("ask the running berth: %w", err)
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return record, false, nil
	default:
		return record, false, fmt.Errorf("ask the running berth: %s", response.Status)
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxRecord)).Decode(&record); err != nil {
		return record, false, fmt.Errorf("read the record of %q: %w", uid, err)
	}
	return record, true, nil
}
