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
}

var (
	// knownPaths begin the paths that have a label of their own; whatever callers make up has none.
	knownPaths = []string{
		"attach", "checkpoint", "configz", "containerLogs", "debug", "exec", "flagz", "healthz", "livez", "logs", "metrics", "pods",
		"portForward", "run", "runningpods", "stats", "statusz",
	}
	knownMethods = []string{
		http.MethodDelete, http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPatch, http.MethodPost, http.MethodPut,
	}
	// longRunningPaths are those whose requests last as long as the caller wants.
	longRunningPaths = []string{"attach", "debug", "exec", "portForward"}
)

const otherLabel = "other"

// NewRequestMetrics makes the metrics and registers them. The clock may be nil.
func NewRequestMetrics(registry prometheus.Registerer, clk clock.PassiveClock) *RequestMetrics {
	if clk == nil {
		clk = clock.RealClock{}
	}
	labels := []string{"method", "path", "server_type", "long_running"}
	r := &RequestMetrics{
		clock: clk,
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_http_requests_total", Help: "Requests received, by the first part of their path.",
		}, labels),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubelet_http_inflight_requests", Help: "Requests that are being answered.",
		}, labels),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_http_requests_duration_seconds", Help: "How long answers of requests took.",
			Buckets: prometheus.DefBuckets,
		}, labels),
	}
	registry.MustRegister(r.total, r.inFlight, r.duration)
	return r
}

// Instrument counts the requests that go to next. The kind of server is readwrite or readonly. A nil Requests counts nothing.
func (r *RequestMetrics) Instrument(kind string, next http.Handler) http.Handler {
	if r == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		path, _, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
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

func knownOrOther(value string, known []string) string {
	if slices.Contains(known, value) {
		return value
	}
	return otherLabel
}
