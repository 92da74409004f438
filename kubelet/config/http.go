package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
)

const httpTimeout = 10 * time.Second

// HTTPConfig are the values an HTTP works with.
type HTTPConfig struct {
	// URL returns a Pod or a list of Pods for a GET with Header.
	URL    string
	Header http.Header
	// NodeName is part of the Pods' names.
	NodeName string
	// Period is how often the URL is fetched, since HTTP has no events; 20 s if zero.
	Period time.Duration
}

// HTTPDeps are what an HTTP needs from others.
type HTTPDeps struct {
	// Set gets all Pods of the URL each time the response has changed. It must not block.
	Set func([]*corev1.Pod)
	// Transport sends the requests; http.DefaultTransport if nil. Logger and Clock may be nil.
	Transport http.RoundTripper
	Logger    *slog.Logger
	Clock     clock.WithTicker
}

// HTTP is the source of static Pods at a URL. While the URL cannot be fetched or its response is invalid, the Pods of
// the last valid response stay.
type HTTP struct {
	config   HTTPConfig
	deps     HTTPDeps
	client   *http.Client
	lastBody []byte // the last valid response, nil if there was none
}

// NewHTTP returns the source. Start runs it.
func NewHTTP(deps HTTPDeps, config HTTPConfig) (*HTTP, error) {
	target, err := url.Parse(config.URL)
	switch {
	case err != nil:
		return nil, fmt.Errorf("static Pods: %w", err)
	case target.Scheme != "http" && target.Scheme != "https", target.Host == "":
		return nil, fmt.Errorf("static Pods: URL %q: want http:// or https:// and a host", target.Redacted())
	case deps.Set == nil:
		return nil, errors.New("config: HTTPDeps.Set is required")
	case config.Period < 0:
		return nil, fmt.Errorf("static Pods: check period %s is negative", config.Period)
	}
	if config.Period == 0 {
		config.Period = defaultCheckPeriod
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	return &HTTP{config: config, deps: deps, client: &http.Client{Transport: deps.Transport, Timeout: httpTimeout}}, nil
}

// Start fetches the URL periodically until ctx ends.
func (h *HTTP) Start(ctx context.Context) error {
	ticker := h.deps.Clock.NewTicker(h.config.Period)
	defer ticker.Stop()
	for {
		if err := h.fetch(ctx); err != nil && ctx.Err() == nil {
			h.deps.Logger.Warn("failed to fetch static Pods; keeping the known ones", "error", err)
		}
		select {
		case <-ctx.Done():
			h.client.CloseIdleConnections()
			return nil
		case <-ticker.C():
		}
	}
}

// fetch fetches the URL once.
func (h *HTTP) fetch(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.config.URL, nil)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	for name, values := range h.config.Header {
		req.Header[name] = values
	}
	resp, err := h.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, MaxManifest+1))
	if err != nil {
		return fmt.Errorf("read response of %q: %w", req.URL.Redacted(), err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("get %q: status %s", req.URL.Redacted(), resp.Status)
	}
	if h.lastBody != nil && bytes.Equal(h.lastBody, data) {
		return nil
	}
	pods, err := Decode(data, SourceInfo{Source: SourceHTTP, Location: h.config.URL, NodeName: h.config.NodeName})
	if err != nil && !errors.Is(err, errEmpty) {
		return fmt.Errorf("Pods of %q: %w", req.URL.Redacted(), err)
	}
	h.lastBody = append([]byte{}, data...)
	h.deps.Set(pods)
	return nil
}
