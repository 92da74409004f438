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
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/timeline"
)

// Handler serves
//   - GET /metrics with what the gatherer gathers, if it is not nil, for Prometheus;
//   - GET /v1/records/{uid} with the record as JSON, or 404;
//   - GET /v1/records?kind=K&limit=N with the N records of that kind that changed last as JSON, the newest first;
//   - GET /v1/stages with every change from now on, a line of JSON each, until the reader leaves. ?uid=… keeps to one
//     object. With "Accept: text/event-stream" the lines come as server-sent events. A reader that is too slow loses
//     changes, and gets their number in a line {"lost":n}.
func Handler(recorder *timeline.Recorder, gatherer prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	if gatherer != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	}
	mux.HandleFunc("GET /v1/records/{uid}", func(w http.ResponseWriter, r *http.Request) {
		record, ok := recorder.Record(types.UID(r.PathValue("uid")))
		if !ok {
			http.Error(w, "no record of this object", http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(record) // the reader has disconnected
	})
	mux.HandleFunc("GET /v1/records", func(w http.ResponseWriter, r *http.Request) {
		limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
		if err != nil || limit < 0 {
			http.Error(w, "limit must be a number", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(recorder.Latest(r.URL.Query().Get("kind"), limit)) // the reader has disconnected
	})
	mux.HandleFunc("GET /v1/stages", func(w http.ResponseWriter, r *http.Request) { stream(recorder, w, r) })
	return mux
}

// bufferSize is how many changes wait for a reader of the stream.
const bufferSize = 1024

func stream(recorder *timeline.Recorder, w http.ResponseWriter, r *http.Request) {
	sub := recorder.Subscribe(bufferSize)
	defer sub.Stop()
	uid := types.UID(r.URL.Query().Get("uid"))
	prefix, suffix, kind := "", "\n", "application/x-ndjson"
	if r.Header.Get("Accept") == "text/event-stream" {
		prefix, suffix, kind = "data: ", "\n\n", "text/event-stream"
	}
	w.Header().Set("Content-Type", kind)
	controller := http.NewResponseController(w)
	send := func(value any) error {
		data, err := json.Marshal(value)
		if err != nil {
			return err
		}
		if _, err := io.WriteString(w, prefix+string(data)+suffix); err != nil {
			return err
		}
		return controller.Flush()
	}
	if controller.Flush() != nil { // the reader knows by the header that it misses nothing from here on
		return
	}
	lost := 0
	for {
		select {
		case <-r.Context().Done():
			return
		case <-sub.C():
			for _, change := range sub.Drain() {
				if uid != "" && change.Ref.UID != uid {
					continue
				}
				if send(change) != nil {
					return // the reader went away
				}
			}
			if now := sub.Dropped(); now > lost {
				if send(map[string]int{"lost": now - lost}) != nil {
					return
				}
				lost = now
			}
		}
	}
}

// Listen creates the socket and replaces one that a killed process left; nothing else is replaced. The caller holds the cluster's lock, so
// no live process can use the old one.
func Listen(socket string) (net.Listener, error) {
	if info, err := os.Lstat(socket); err == nil && info.Mode().Type() != os.ModeSocket {
		return nil, fmt.Errorf("replace socket %s: it is no socket: delete it, or choose another path", socket)
	}
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

// headerTimeout bounds how long a reader may take to send the headers of its request.
const headerTimeout = 5 * time.Second

// Serve serves requests on a socket of Listen until ctx ends, and closes it. The gatherer may be nil.
func Serve(ctx context.Context, listener net.Listener, recorder *timeline.Recorder, gatherer prometheus.Gatherer) error {
	server := &http.Server{Handler: contain.Handler("timeline.serve", Handler(recorder, gatherer)), ReadHeaderTimeout: headerTimeout}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // its responses are short, and a client can repeat its request
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("answer on %s: %w", listener.Addr(), err)
	}
	return nil
}

// Client reads records from a socket. It is safe for concurrent use.
type Client struct{ http http.Client }

// NewClient returns a Client of the socket; it connects at the first request.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", socket)
	}
	return &Client{http: http.Client{Transport: &http.Transport{DialContext: dial}}}
}

// maxRecordBytes bounds a response; a record's stages are bounded, so a longer one is no record.
const maxRecordBytes = 4 << 20

// Record returns the object's record, false if there is none. An error means that no berth serves the socket.
func (c *Client) Record(ctx context.Context, uid types.UID) (timeline.Record, bool, error) {
	var record timeline.Record
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://berth/v1/records/"+string(uid), http.NoBody)
	if err != nil {
		return record, false, fmt.Errorf("query the record of %q: %w", uid, err)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return record, false, fmt.Errorf("query the running berth: %w", err)
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return record, false, nil
	default:
		return record, false, fmt.Errorf("query the running berth: %s", response.Status)
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxRecordBytes)).Decode(&record); err != nil {
		return record, false, fmt.Errorf("read the record of %q: %w", uid, err)
	}
	return record, true, nil
}

// Latest returns the records of a kind that changed last, at most limit, the newest first.
func (c *Client) Latest(ctx context.Context, kind string, limit int) ([]timeline.Record, error) {
	query := url.Values{"kind": {kind}, "limit": {strconv.Itoa(limit)}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://berth/v1/records?"+query.Encode(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("query the records: %w", err)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("query the running berth: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("query the running berth for the last records: %s (it may be of an older version)", response.Status)
	}
	var records []timeline.Record
	if err := json.NewDecoder(response.Body).Decode(&records); err != nil {
		return nil, fmt.Errorf("read the last records: %w", err)
	}
	return records, nil
}

// Stages calls each for every change from now on, of the object with the UID or, if it is empty, of all. It calls ready, if
// not nil, once it receives every change. A change without a UID says that some were lost. It returns nil when ctx ends, else the error that ended the stream.
func (c *Client) Stages(ctx context.Context, uid types.UID, ready func(), each func(timeline.Change)) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://berth/v1/stages?uid="+url.QueryEscape(string(uid)), http.NoBody)
	if err != nil {
		return fmt.Errorf("query the stages: %w", err)
	}
	response, err := c.http.Do(request)
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the caller has left
	}
	if err != nil {
		return fmt.Errorf("query the running berth: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("query the running berth for the stages: %s", response.Status)
	}
	if ready != nil {
		ready()
	}
	decoder := json.NewDecoder(response.Body)
	for {
		var line struct {
			timeline.Change
			Lost int `json:"lost"`
		}
		if err := decoder.Decode(&line); err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // the caller has left
			}
			return fmt.Errorf("read the stages of the running berth: %w", err)
		}
		if line.Ref.UID != "" || line.Lost > 0 {
			each(line.Change)
		}
	}
}
