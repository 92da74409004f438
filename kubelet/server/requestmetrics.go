package server

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
)

// RequestMetrics are the metrics of requests, under upstream's names. Several servers may share them.
type RequestMetrics struct {
	clock    clock.PassiveClock
	total    *prometheus.CounterVec
	inFlight *prometheus.GaugeVec
	duration *prometheus.HistogramVec
	// translated counts the streams of callers with the newest protocols of WebSockets, which the runtime does not have.
	translated *prometheus.CounterVec
}

var (
	// knownPaths are the beginnings of paths with a label of their own; all others share one.
	knownPaths = []string{
		"attach", "checkpoint", "configz", "containerLogs", "debug", "exec", "flagz", "healthz", "livez", "logs", "metrics",
		"metrics/cadvisor", "metrics/probes", "metrics/processes", "metrics/resource", "metrics/slis", "pods", "portForward", "run",
		"runningpods", "stats", "statusz",
	}
	knownMethods = []string{
		http.MethodConnect, http.MethodDelete, http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPost, http.MethodPut,
		http.MethodTrace,
	}
	// longRunningPaths are those whose requests last as long as the caller wants.
	longRunningPaths = []string{"attach", "debug", "exec", "portForward"}
)

const otherLabel = "other"

// NewRequestMetrics returns the metrics after registering them.
func NewRequestMetrics(registry prometheus.Registerer, clock clock.PassiveClock) *RequestMetrics {
	labels := []string{"method", "path", "server_type", "long_running"}
	r := &RequestMetrics{
		clock: clock,
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_http_requests_total", Help: "Requests received, by the beginning of their path.",
		}, labels),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubelet_http_inflight_requests", Help: "Requests in progress.",
		}, labels),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_http_requests_duration_seconds", Help: "Duration of requests in seconds.",
			Buckets: prometheus.DefBuckets,
		}, labels),
		translated: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_websocket_streaming_requests_total",
			Help: "Requests of WebSockets whose streams the kubelet translates for the runtime, by subresource.",
		}, []string{"subresource"}),
	}
	registry.MustRegister(r.total, r.inFlight, r.duration, r.translated)
	return r
}

// countTranslated counts a request for a subresource (exec, attach or portforward). A nil RequestMetrics counts nothing.
func (r *RequestMetrics) countTranslated(subresource string) {
	if r != nil {
		r.translated.WithLabelValues(subresource).Inc()
	}
}

// Instrument measures the requests to next. The server type is readwrite or readonly. A nil RequestMetrics measures
// nothing.
func (r *RequestMetrics) Instrument(kind string, next http.Handler) http.Handler {
	if r == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		path := beginning(req.URL.Path)
		long := strconv.FormatBool(slices.Contains(longRunningPaths, path))
		labels := []string{knownOrOther(req.Method, knownMethods), knownOrOther(path, knownPaths), kind, long}
		start := r.clock.Now()
		r.total.WithLabelValues(labels...).Inc()
		r.inFlight.WithLabelValues(labels...).Inc()
		defer func() {
			r.inFlight.WithLabelValues(labels...).Dec()
			r.duration.WithLabelValues(labels...).Observe(r.clock.Since(start).Seconds())
		}()
		next.ServeHTTP(w, req)
	})
}

// beginning returns the first element of a path, and the first two of those below metrics, whose costs differ.
func beginning(path string) string {
	first, rest, more := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if first != "metrics" || !more {
		return first
	}
	second, _, _ := strings.Cut(rest, "/")
	return first + "/" + second
}

// knownOrOther returns the label of a value.
func knownOrOther(value string, known []string) string {
	if slices.Contains(known, value) {
		return value
	}
	return otherLabel
}
