package server

import (
	"net/http"

	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/component-base/metrics/prometheus/slis"
)

// ReadOnlyHandler serves what anybody may read: health, metrics, statistics and the list of Pods. It runs nothing, and reads
// neither files nor logs of containers. It uses neither Deps.Auth nor Deps.Logger.
func ReadOnlyHandler(deps Deps) http.Handler {
	mux := http.NewServeMux()
	healthz.InstallHandler(mux, append([]healthz.HealthChecker{healthz.PingHealthz}, deps.Checks...)...)
	mux.Handle("GET /metrics", metricsHandler(deps.Metrics))
	mux.Handle("GET /metrics/probes", metricsHandler(deps.ProbeMetrics))
	checks := http.NewServeMux()
	slis.SLIMetricsWithReset{}.Install(checks)
	mux.Handle("GET /metrics/slis", checks) // DELETE would reset them
	StatsRoutes(mux, deps.Stats)
	pods := func(w http.ResponseWriter, _ *http.Request) { writePods(w, deps.Host.GetPods()) }
	mux.HandleFunc("GET /pods", pods)
	mux.HandleFunc("GET /pods/{$}", pods)
	return deps.RequestMetrics.Instrument("readonly", mux)
}
