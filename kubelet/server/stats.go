package server

import (
	"context"
	"net/http"
	"net/http/pprof"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Stats reports what the node and its Pods use. *stats.Provider implements it.
type Stats interface {
	// Summary returns the content of /stats/summary.
	Summary(ctx context.Context, cpuAndMemory bool) (*statsapi.Summary, error)
	// Resources and Cadvisor return the metrics of the paths of these names. They are gathered once.
	Resources(ctx context.Context) prometheus.Gatherer
	Cadvisor(ctx context.Context) prometheus.Gatherer
}

// StatsRoutes adds the paths of statistics to a caller's mux, which authorizes requests. If usage is nil, they respond
// that they are not served.
func StatsRoutes(mux *http.ServeMux, usage Stats) {
	mux.HandleFunc("/stats/", unsupported)
	if usage == nil {
		mux.HandleFunc("/metrics/cadvisor", unsupported)
		mux.HandleFunc("/metrics/resource", unsupported)
		return
	}
	mux.HandleFunc("GET /stats/summary", func(w http.ResponseWriter, r *http.Request) { getSummary(w, r, usage) })
	mux.HandleFunc("GET /metrics/cadvisor", func(w http.ResponseWriter, r *http.Request) {
		metricsHandler(usage.Cadvisor(r.Context())).ServeHTTP(w, r)
	})
	mux.HandleFunc("GET /metrics/resource", func(w http.ResponseWriter, r *http.Request) {
		metricsHandler(usage.Resources(r.Context())).ServeHTTP(w, r)
	})
}

func getSummary(w http.ResponseWriter, r *http.Request, usage Stats) {
	cpuAndMemory := false
	if value := r.URL.Query().Get("only_cpu_and_memory"); value != "" {
		var err error
		if cpuAndMemory, err = strconv.ParseBool(value); err != nil {
			http.Error(w, "query parameter only_cpu_and_memory: want true or false", http.StatusBadRequest)
			return
		}
	}
	summary, err := usage.Summary(r.Context(), cpuAndMemory)
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, summary)
}

// profileRoutes adds the paths of Go's profiler.
func profileRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
}
